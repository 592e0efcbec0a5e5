"""torch.set_default_device, which programs of a GPU set to it, and set_default_dtype: what is made here on the way is made where
and as it is needed. The meta device stands for the GPU: whatever lands there has no numbers."""

import pytest
import torch

import sirdar.torch
from sirdar.compat import flash_attn, flash_attn_2_cuda, flash_attn_interface as fa3
from sirdar.compat.flash_attn import bert_padding, flash_attn_interface as fa2
from sirdar.compat.flash_attn.layers.rotary import apply_rotary_emb, RotaryEmbedding

Q, K, V = (torch.randn(2, 7, heads, 16) for heads in (4, 2, 2))
STARTS, LENGTHS = torch.tensor([0, 3, 7]).int(), torch.tensor([3, 4]).int()
TABLE, TABLE_WITH_A_HOLE = torch.tensor([[0], [1]]).int(), torch.tensor([[0, -1], [1, -1]]).int()
ANGLES, MASK, LSE, QKV = torch.rand(16, 8), torch.ones(2, 7, dtype=torch.bool), torch.randn(2, 4, 7), torch.randn(2, 7, 3, 4, 16)
SCALES = torch.ones(2, 2) / 2
ROTARY = RotaryEmbedding(16)


def heads_first(**options):
    return sirdar.torch.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (Q, Q, Q)), **options)


def cached(module=flash_attn, **options):
    given = {"k": K[:, :1], "v": V[:, :1], "cache_seqlens": LENGTHS, **options}
    return module.flash_attn_with_kvcache(Q, K.clone(), V.clone(), causal=True, **given)


def gradients(**options):
    q = Q.clone().requires_grad_()
    return torch.autograd.grad(flash_attn.flash_attn_func(q, K, V, **options).sum(), q)[0]


CALLS = {
    "attention": lambda: sirdar.torch.attention(Q, K, V, causal=True, return_lse=True),
    "dropout": lambda: sirdar.torch.attention(Q, K, V, dropout_p=0.3),
    "function": lambda: sirdar.torch.attention(Q, K, V, score_mod=lambda score, b, h, q, k: score + k),
    "merge": lambda: sirdar.torch.merge(Q, LSE, Q, LSE),
    "vmap": lambda: torch.vmap(lambda q: sirdar.torch.attention(q[None], K[:1], V[:1]))(Q),
    "NumPy's": lambda: sirdar.attention(Q, K, V, causal=True, return_lse=True),
    "sdpa": heads_first,
    "sdpa with dropout": lambda: heads_first(dropout_p=0.2),
    "weights": lambda: flash_attn.flash_attn_func(Q, K, V, 0.2, return_attn_probs=True),
    "gradients": lambda: gradients(dropout_p=0.2),
    "autograd": lambda: fa2.FlashAttnFunc.apply(Q, K, V, 0.2, None, True, (-1, -1), 0.0, None, False, True, True),
    "ragged": lambda: flash_attn.flash_attn_varlen_func(Q[0], K[0], V[0], STARTS, STARTS, 4, 4, 0.2, return_attn_probs=True),
    "lower": lambda: fa2._flash_attn_forward(Q, K, V, 0.0, None, False),
    "lower, ragged": lambda: fa2._flash_attn_varlen_forward(Q[0], K[0], V[0], STARTS, STARTS, 4, 4, 0.0, None, False),
    "extension": lambda: flash_attn_2_cuda.fwd(Q, K, V, None, None, 0.1, 0.25, False, -1, -1, 0.0, True),
    "cache": cached,
    "cache, turned": lambda: cached(rotary_cos=ANGLES, rotary_sin=ANGLES),
    "cache, one length": lambda: cached(k=None, v=None, cache_seqlens=3, cache_leftpad=LENGTHS),
    "pages": lambda: cached(block_table=TABLE),
    "pages that are not read": lambda: cached(block_table=TABLE_WITH_A_HOLE),
    "rows": lambda: cached(cache_batch_idx=LENGTHS - 3),
    "FlashAttention-3": lambda: fa3.flash_attn_func(Q, K, V, q_descale=SCALES, v_descale=SCALES),
    "its cache": lambda: cached(fa3, page_table=TABLE),
    "combined": lambda: fa3.flash_attn_combine(torch.stack([Q, Q]), LSE.transpose(1, 2).expand(2, 2, 7, 4)),
    "turned": lambda: apply_rotary_emb(Q, ANGLES, ANGLES, seqlen_offsets=LENGTHS),
    "rotary module": lambda: ROTARY(QKV.clone()),
    "padding": lambda: bert_padding.pad_input(*bert_padding.unpad_input(Q, MASK)[:2], 2, 7),
}


def flat(made):
    return [made] if isinstance(made, torch.Tensor) else list(made)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_defaults_of_torch_change_nothing(call):
    torch.manual_seed(5)
    wanted = flat(call())
    for device, dtype in (("meta", torch.float32), ("cpu", torch.float64), ("cpu", torch.float16)):
        torch.manual_seed(5)
        torch.set_default_dtype(dtype)
        try:
            with torch.device(device):
                found = flat(call())
        finally:
            torch.set_default_dtype(torch.float32)
        for one, other in zip(found, wanted):
            assert one.device == other.device and one.dtype == other.dtype and torch.equal(one, other)
