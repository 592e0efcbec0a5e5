"""What is refused behind flash-attn's names is told in its words: the arguments as the caller wrote them."""

import pytest
import torch

from sirdar.compat import flash_attn, flash_attn_2_cuda, flash_attn_interface as fa3
from sirdar.compat.flash_attn import flash_attn_interface as fa2

Q, K, V = (torch.randn(2, 3, 4, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 9, 2, 16))
LSE = torch.randn(2, 4, 3)


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def cached(module=flash_attn, **options):
    return module.flash_attn_with_kvcache(Q, **{"k_cache": K.clone(), "v_cache": V.clone(), **options})


def ragged(**options):
    given = {"cu_seqlens_q": ints(0, 3), "cu_seqlens_k": ints(0, 9), "max_seqlen_q": 3, "max_seqlen_k": 9}
    given = {"q": Q[0], "k": K[0], "v": V[0], **given, **options}
    return flash_attn.flash_attn_varlen_func(**given)


def backward(**options):
    given = {"dq": None, "dk": None, "dv": None, "dropout_p": 0.0, "softmax_scale": None, "causal": False, "softmax_lse": LSE}
    return fa2._flash_attn_backward(Q, Q, K, V, Q, **{**given, **options})


EXTENSION = (None, 0.0, None, False, -1, -1, 0.0, False)
NEW = {"k": K[:, :1], "v": V[:, :1]}
ROWS = ints(0, 1)
CALLS = [
    (lambda: cached(cache_batch_idx=ints(5, 0)), r"cache_batch_idx: cache_batch_idx\[0, 0\] = 5 is"),
    (lambda: cached(fa3, cache_batch_idx=ints(0, -1)), r"cache_batch_idx: cache_batch_idx\[1, 0\] = -1 is"),
    (lambda: cached(cache_batch_idx=ints(0), cache_seqlens=ints(1, 2)), "cache_batch_idx: shape"),
    (lambda: cached(cache_seqlens=ints(3, 10)), r"cache_seqlens: cache_seqlens\[1\] = 10 is not from 0 to 9"),
    (lambda: cached(fa3, cache_seqlens=-1), "cache_seqlens: -1 is no length"),
    (lambda: cached(cache_seqlens=ints(-1, 3)), r"cache_seqlens: cache_seqlens\[0\] = -1"),
    (lambda: cached(cache_seqlens=ints(1, 1), block_table=ROWS[:, None] * 7), r"block_table: block_table\[1, 0\] = 7 is"),
    (lambda: cached(fa3, cache_seqlens=ints(1, 1), page_table=ROWS[:, None] * 7), r"page_table: page_table\[1, 0\] = 7 is"),
    (lambda: cached(cache_seqlens=ints(1, 1), block_table=ROWS[:, None] * 7, **NEW), "block_table: holds 7"),
    (lambda: cached(fa3, cache_seqlens=ints(1, 1), page_table=ROWS[:, None] * 7, **NEW), "page_table: holds 7"),
    (lambda: cached(fa3, cache_seqlens=ints(1, 1), page_table=ROWS[:, None].float()), "page_table: is torch.float32"),
    (lambda: cached(fa3, cache_seqlens=ints(9, 1), page_table=ROWS[:, None], **NEW), "page_table: holds 9 keys a sequence"),
    (lambda: cached(cache_seqlens=ints(9, 1), **NEW), "k_cache: holds 9 keys a sequence"),
    (lambda: cached(v_cache=V[:, :8]), "v_cache: shape"),
    (lambda: cached(k_cache=K[..., :8]), "k_cache: shape"),
    (lambda: cached(alibi_slopes=torch.ones(3)), "alibi_slopes: shape"),
    (lambda: flash_attn.flash_attn_func(Q, K, V, alibi_slopes=torch.ones(4).half()), "alibi_slopes: dtype fp16"),
    (lambda: flash_attn.flash_attn_func(Q, K, V, alibi_slopes=torch.ones(4, requires_grad=True)), "alibi_slopes: requires"),
    (lambda: ragged(max_seqlen_k=-1), "max_seqlen_k: is -1"),
    (lambda: ragged(k=K, v=V, block_table=ints(5)[None]), r"block_table: block_table\[0, 0\] = 5 is"),
    (lambda: ragged(k=K, v=V, block_table=ints(0, 1)[None], cu_seqlens_k=ints(0, 19)), r"cu_seqlens_k: cu_seqlens_k\[0\] = 19"),
    (lambda: backward(softmax_lse=LSE.half()), "softmax_lse: dtype fp16"),
    (lambda: backward(softmax_lse=None), "softmax_lse: "),
    (lambda: backward(dropout_p=0.5), "rng_state: "),
    (lambda: backward(dropout_p=0.5, rng_state="x"), "rng_state: a str"),
    (lambda: backward(dropout_p=0.5, rng_state=torch.zeros(3)), "rng_state: is torch.float32"),
    (lambda: fa3._flash_attn_backward(Q, Q, K, V, Q, LSE[0]), "softmax_lse: shape"),
    (lambda: fa3._flash_attn_forward(Q, K, V, out_=torch.zeros(3)), "out: is torch.float32 of shape"),
    (lambda: fa3._flash_attn_forward(Q, K, V, out=torch.zeros(3, *Q.shape)), "out: is torch.float32 of shape"),
    (lambda: flash_attn_2_cuda.fwd(Q, K, V, torch.zeros(2, *Q.shape), *EXTENSION), "out: is torch.float32 of shape"),
    (lambda: flash_attn_2_cuda.fwd(Q, K, V, "x", *EXTENSION), "out: a str"),
    (lambda: flash_attn_2_cuda.fwd(Q, K, V, Q.int(), *EXTENSION), "out: is torch.int32"),
]


@pytest.mark.parametrize("call, words", CALLS, ids=[f"{i} {words}" for i, (_, words) in enumerate(CALLS)])
def test_the_argument_is_named_as_the_caller_knows_it(call, words):
    for _ in range(2):
        with pytest.raises((NotImplementedError, RuntimeError, TypeError, ValueError), match=f"^{words}") as caught:
            call()
        assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


COUNTS = "batch_size max_seqlen_q max_seqlen_k num_heads_q num_heads_kv headdim headdim_v page_size max_seqlen_k_new attention_chunk"


@pytest.mark.parametrize("name", COUNTS.split())
def test_what_a_schedule_is_asked_for(name):
    given = dict.fromkeys(COUNTS.split(), 2) | {"cache_seqlens": ints(1, 2)}
    assert fa3.get_scheduler_metadata(**given).numel() == 0
    for value in (-1, 2.0, True, "2", 2**70):
        with pytest.raises((TypeError, ValueError), match=f"^{name}: "):
            fa3.get_scheduler_metadata(**{**given, name: value})
