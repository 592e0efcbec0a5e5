"""Numbers and flags of the wrong kind, in every public function: a bool or a float for a whole number, a negative
count, a number for a flag. Each is refused by its name in one sentence, also where its equal was allowed just
before: 1, 1.0 and True are equal, and plans are kept by what was given."""

import collections

import numpy as np
import pytest
import torch

import sirdar
import sirdar.torch
from sirdar.compat import flash_attn as fa2, flash_attn_interface as fa3
from sirdar.compat.flash_attn import bert_padding, flash_attn_interface as fa2_lower

jax = pytest.importorskip("jax")

Q, K = np.ones((1, 5, 4, 16), np.float32), np.ones((1, 7, 2, 16), np.float32)
TQ, TK = torch.from_numpy(Q), torch.from_numpy(K)
STARTS_Q, STARTS_K = np.array([0, 5], np.int32), np.array([0, 7], np.int32)
TS_Q, TS_K = torch.from_numpy(STARTS_Q), torch.from_numpy(STARTS_K)
OUT, LSE = sirdar.attention(Q, K, K, return_lse=True)
T_OUT, T_LSE = torch.from_numpy(OUT), torch.from_numpy(LSE)

WHOLE = (True, False, np.True_, 1.0, 0.0, 1.5, np.float32(0), np.zeros(()), np.ones(1), torch.tensor([1.0]), np.ones(2, int),
         torch.tensor([True]), torch.ones(1, device="meta"), "1", "", b"", [1], 2**70, 10**5000)
COUNT = (*WHOLE, -3)
FLAG = (1.0, 0.0, 2, -1, "yes", [True], None, torch.ones(1, device="meta"))
REAL = (True, False, np.True_, np.array([True]), torch.tensor(False), np.ones(2), "0.5", "", [0.5], 10**5000)
SWITCH = (*REAL, 1e-50, -1e-50, 1e-45)

OF_SCORES = {"softmax_scale": REAL, "softcap": SWITCH, "causal": FLAG}
OF_MASKS = {**OF_SCORES, "window_left": COUNT, "window_right": COUNT, "chunk_size": COUNT, "dropout_p": SWITCH}
OF_PLANS = {"num_threads": COUNT, "allow_reference": FLAG, "batch_invariant": FLAG}
RETURNED = {"return_lse": FLAG, "return_max_logit": FLAG}
SEED = {"dropout_seed": COUNT, "dropout_offset": COUNT}
LENGTHS = {"seqlen_q": COUNT, "seqlen_k": COUNT}
FA2 = {**OF_SCORES, "dropout_p": SWITCH, "deterministic": FLAG, "return_attn_probs": FLAG}
FA3 = {**OF_SCORES, "attention_chunk": COUNT, "sm_margin": COUNT, "deterministic": FLAG, "return_attn_probs": FLAG}
HINTS = {"num_splits": WHOLE, "pack_gqa": (2, -1, 1.0, "yes", [True])}
CACHE = {**OF_SCORES, "num_splits": WHOLE, "rotary_interleaved": FLAG, "return_softmax_lse": FLAG, "cache_seqlens": COUNT}
WINDOW = ((1, True), (1.0, 1), (1,), (1, 2, 3), 1, None, "ab")


def ragged(function, q, k, starts_q, starts_k, *more):
    return lambda **options: function(q[0], k[0], k[0], starts_q, starts_k, *more, **options)


FUNCTIONS = {
    "sirdar.attention": (
        lambda **options: sirdar.attention(Q, K, K, **options), {**OF_MASKS, **OF_PLANS, **RETURNED, **SEED},
    ),
    "sirdar.attention_varlen": (
        ragged(sirdar.attention_varlen, Q, K, STARTS_Q, STARTS_K), {**OF_MASKS, **LENGTHS, **RETURNED},
    ),
    "sirdar.decode": (
        lambda **options: sirdar.decode(Q[:, 0], K, K, **options), {**OF_MASKS, **OF_PLANS, **RETURNED},
    ),
    "sirdar.backward": (
        lambda **options: sirdar.backward(OUT, Q, K, K, OUT, LSE, **options),
        {**OF_MASKS, **OF_PLANS, **SEED, "needs_dbias": FLAG, "needs_dsink": FLAG, "deterministic": FLAG},
    ),
    "sirdar.plan": (lambda **options: sirdar.plan(Q, K, K, **options), {**OF_MASKS, **OF_PLANS, **RETURNED}),
    "sirdar.explain": (
        lambda **options: sirdar.explain("fwd s64 h2 d16", **options), {"num_threads": COUNT, "allow_reference": FLAG},
    ),
    "sirdar.torch.attention": (
        lambda **options: sirdar.torch.attention(TQ, TK, TK, **options),
        {**OF_MASKS, **RETURNED, "deterministic": FLAG},
    ),
    "sirdar.torch.attention_varlen": (
        ragged(lambda *given, **options: sirdar.torch.attention_varlen(*given, **{"seqlen_q": 5, "seqlen_k": 7, **options}),
               TQ, TK, TS_Q, TS_K), {**OF_MASKS, **LENGTHS},
    ),
    "sirdar.torch.backward": (
        lambda **options: sirdar.torch.backward(T_OUT, TQ, TK, TK, T_OUT, T_LSE, **options),
        {**OF_SCORES, "window_left": COUNT, "chunk_size": COUNT, "deterministic": FLAG},
    ),
    "scaled_dot_product_attention": (
        lambda **options: sirdar.torch.scaled_dot_product_attention(TK, TK, TK, **options),
        {"scale": REAL, "dropout_p": SWITCH, "is_causal": FLAG, "enable_gqa": FLAG},
    ),
    "flash_attn_func": (lambda **options: fa2.flash_attn_func(TQ, TK, TK, **options), {**FA2, "window_size": WINDOW}),
    "flash_attn_kvpacked_func": (
        lambda **options: fa2.flash_attn_kvpacked_func(TQ, torch.stack([TK, TK], 2), **options), FA2,
    ),
    "flash_attn_qkvpacked_func": (
        lambda **options: fa2.flash_attn_qkvpacked_func(torch.stack([TK] * 3, 2), **options), FA2,
    ),
    "flash_attn_varlen_func": (ragged(fa2.flash_attn_varlen_func, TQ, TK, TS_Q, TS_K, 5, 7), FA2),
    "flash_attn_with_kvcache": (
        lambda **options: fa2.flash_attn_with_kvcache(TQ, TK, TK, **options), {**CACHE, "window_size": WINDOW},
    ),
    "_flash_attn_varlen_forward": (
        lambda **options: fa2_lower._flash_attn_varlen_forward(
            TQ[0], TK[0], TK[0], TS_Q, TS_K,
            **{"max_seqlen_q": 5, "max_seqlen_k": 7, "dropout_p": 0.0, "softmax_scale": None, "causal": False, **options},
        ), {**OF_SCORES, "dropout_p": SWITCH, "num_splits": WHOLE, "max_seqlen_q": COUNT, "max_seqlen_k": COUNT},
    ),
    "FA3 flash_attn_func": (
        lambda **options: fa3.flash_attn_func(TQ, TK, TK, **options), {**FA3, **HINTS, "window_size": WINDOW},
    ),
    "FA3 flash_attn_varlen_func": (
        ragged(fa3.flash_attn_varlen_func, TQ, TK, TS_Q, TS_K, 5, 7), {**FA3, **HINTS},
    ),
    "FA3 flash_attn_qkvpacked_func": (
        lambda **options: fa3.flash_attn_qkvpacked_func(TQ, **{"num_heads_q": 2, **options}),
        {**FA3, "num_heads_q": (*COUNT, 0, 1, 3, 4, 5)},
    ),
    "FA3 flash_attn_with_kvcache": (
        lambda **options: fa3.flash_attn_with_kvcache(TQ, TK, TK, **options),
        {**CACHE, **HINTS, "attention_chunk": COUNT, "sm_margin": COUNT},
    ),
    "FA3 get_scheduler_metadata": (
        lambda **options: fa3.get_scheduler_metadata(1, 5, 7, 4, 2, 16, TS_Q[1:], **options),
        {**HINTS, "sm_margin": COUNT},
    ),
    "FA3 _flash_attn_backward": (
        lambda **options: fa3._flash_attn_backward(T_OUT, TQ, TK, TK, T_OUT, T_LSE, **options),
        {"softmax_scale": REAL, "softcap": SWITCH, "sm_margin": COUNT, "deterministic": FLAG},
    ),
}  # fmt: skip


def jax_attention(**options):
    from sirdar.jax import attention

    return attention(*(jax.numpy.asarray(x) for x in (Q, K, K)), **options)


FUNCTIONS["sirdar.jax.attention"] = (jax_attention, {**OF_MASKS, **SEED, "return_lse": FLAG, "num_threads": COUNT})
CASES = [(function, name) for function, (_, names) in FUNCTIONS.items() for name in names]


def equals_of(values):
    """What is allowed and equal to some of the values that are not."""
    if values is COUNT or values is WHOLE:
        return 1, 0
    return (1.0, 0.0) if values is REAL or values is SWITCH else (True, False)



@pytest.mark.parametrize("function, name", CASES)
def test_it_is_refused_by_name(function, name):
    call, names = FUNCTIONS[function]
    for value in equals_of(names[name]):
        try:
            call(**{name: value})
        except (NotImplementedError, TypeError, ValueError):
            pass  # dropout that is 1, a side that has its length from its shape
    for value in names[name]:
        with pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
            call(**{name: value})
        message = str(caught.value)
        assert message.startswith(f"{name}: "), (value, message)
        assert message.endswith(".") and "\n" not in message and len(message) < 300, message


def arrays_of(number):
    """A number as the arrays and scalars that hold it."""
    dtypes = (np.int8, np.int64, np.uint16) if type(number) is int else (np.float32, np.float64)
    made = [maker(number) for maker in dtypes] + [np.full(shape, number) for shape in ((), (1,), (1, 1))]
    return [*made, *(torch.full(shape, number) for shape in ((), (1,), (1, 1)))]


@pytest.mark.parametrize("function, name", CASES)
def test_an_array_of_one_element_is_the_number_that_it_holds(function, name):
    call, names = FUNCTIONS[function]
    if name in ("seqlen_q", "seqlen_k", "max_seqlen_q", "max_seqlen_k"):
        number = 7
    elif names[name] is FLAG:
        number = None
        if function == "scaled_dot_product_attention":
            return  # whose flags are bools alone, as torch has it
    elif name in ("dropout_seed", "dropout_offset", "dropout_p", "cache_seqlens", "num_heads_q", "window_size"):
        return  # needs another argument too, draws, is a tensor of another meaning, is a pair, or has one value
    else:
        number = 1 if names[name] is COUNT or names[name] is WHOLE else 0.5
    if number is None:
        made = [np.True_, np.array(True), np.array([True]), torch.tensor(True), torch.tensor([[True]])]
        wanted = call_of(call, name, True)
    else:
        made, wanted = arrays_of(number), call_of(call, name, number)
    for one in made:
        found = call_of(call, name, one)
        assert type(found) is type(wanted) and repr(found) == repr(wanted), (one, found, wanted)


def call_of(call, name, value):
    try:
        return call(**{name: value})
    except (NotImplementedError, TypeError, ValueError) as error:
        return error  # the same one


def test_an_array_that_is_written_to_later_is_another_number():
    for name, hold in (("window_left", 0), ("chunk_size", 1), ("softmax_scale", 0.0), ("softcap", 0.5)):
        for function in ("sirdar.attention", "sirdar.torch.attention"):
            call = FUNCTIONS[function][0]
            for made in (np.full(1, hold), torch.full((1,), hold), torch.full((), hold)):
                call(**{name: made})
                made[...] = 3
                assert repr(call(**{name: made})) == repr(call(**{name: 3}))


@pytest.mark.parametrize("name", ["score_mod", "mask_mod"])
@pytest.mark.parametrize("value", ["", " ", 0, 0.0, False, [], (), {}, b"", np.array(0), np.zeros(0), torch.zeros(0), object()])
def test_an_expression_that_is_none(name, value):
    functions = ("attention", "decode", "backward", "plan", "torch.attention", "torch.backward", "jax.attention")
    for call in (FUNCTIONS[f"sirdar.{function}"][0] for function in functions):
        with pytest.raises((TypeError, ValueError), match=f"^{name}: "):
            call(**{name: value})


MEGABYTE = "x" * 1_000_000


@pytest.mark.parametrize(
    "call, names",
    [
        (FUNCTIONS["sirdar.attention"][0], "alignment implementation isa dtype_out window_left softcap causal"),
        (FUNCTIONS["sirdar.plan"][0], "alignment implementation isa needs_dbias num_threads"),
        (FUNCTIONS["sirdar.explain"][0], "implementation isa"),
        (FUNCTIONS["sirdar.backward"][0], "needs_dtensors alignment implementation"),
        (FUNCTIONS["sirdar.torch.attention"][0], "alignment chunk_size return_lse"),
        (FUNCTIONS["scaled_dot_product_attention"][0], "scale is_causal dropout_p"),
        (FUNCTIONS["flash_attn_func"][0], "window_size causal softcap"),
        (FUNCTIONS["flash_attn_with_kvcache"][0], "cache_seqlens window_size num_splits"),
        (FUNCTIONS["FA3 flash_attn_func"][0], "attention_chunk pack_gqa"),
        (lambda **options: sirdar.plan("fwd s64 h2 d16", **options), "device isa"),
    ],
)
def test_what_is_quoted_is_short(call, names):
    for name in names.split():
        for value in (MEGABYTE, MEGABYTE.encode(), [1] * 100_000, {1: MEGABYTE}, 10**100_000):
            with pytest.raises((TypeError, ValueError)) as caught:
                call(**{name: value})
            message = str(caught.value)
            assert message.startswith(name) and len(message) < 900, (message[:100], len(message))
            if value is MEGABYTE and "'" in message:
                assert "xxx ... xxx" in message


def without_memory(*shape, dtype=torch.float32):
    tensor = torch.ones(shape, dtype=dtype)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("function", [fa2.flash_attn_func, fa3.flash_attn_func])
def test_what_is_quoted_is_not_read(function):
    """Torch's own words for a tensor are its numbers, which end the program where their memory was given back."""
    pair = collections.namedtuple("pair", "left right")
    for tensor in (without_memory(1), without_memory(), without_memory(2), without_memory(1, dtype=torch.int64)):
        for given in ((tensor, -1), [1, tensor], pair(tensor, 1), {"a": tensor, 1: 2}, [[tensor], 1], {1: [tensor]}, tensor):
            with pytest.raises(ValueError, match=r"^window_size: is .*Tensor of shape \["):
                function(TQ, TK, TK, window_size=given)
    endless = [1]
    endless.append(endless)
    plain = ((1, 2, 3), (), (1,), ["a", 1.5], {"a": [None]}, {1}, set(), endless, [[[[1]]]])
    texts = "(1, 2, 3)", "()", "(1,)", "['a', 1.5]", "{'a': [None]}", "{1}", "set()", "[1, [1, [1, [...]]]]", "[[[[...]]]]"
    for given, text in zip(plain, texts):
        with pytest.raises(ValueError) as caught:
            function(TQ, TK, TK, window_size=given)
        assert str(caught.value).startswith(f"window_size: is {text}; two whole numbers"), caught.value


def test_names_that_are_quoted_are_short():
    one = {MEGABYTE: 3}
    calls = [
        lambda: sirdar.plan(MEGABYTE),
        lambda: sirdar.plan("fwd s64 h2 d16 " + MEGABYTE),
        lambda: sirdar.plan("fwd s64 h2 d16", **one),
        lambda: sirdar.plan(Q, K, K, **one),
        lambda: sirdar.attention(Q, K, K, knobs=one),
        lambda: sirdar.attention(Q, K, K, knobs={"num_threads": MEGABYTE}),
        lambda: sirdar.attention(Q, K, K, knobs={"block_m": MEGABYTE}),
        lambda: sirdar.attention(Q, K, K, knobs={"block_m": 10**5000}),
        lambda: sirdar.attention(Q, K, K, knobs={10**5000: 1}),
        lambda: sirdar.torch.backward(T_OUT, TQ, TK, TK, T_OUT, T_LSE, **one),
        lambda: sirdar.torch.sdpa(MEGABYTE),
        lambda: sirdar.selftest(MEGABYTE),
        lambda: sirdar.attention(Q, K, K, score_mod=lambda score, b: score ** (b + 1) + sum(b * i for i in range(999))),
        lambda: fa3.flash_attn_with_kvcache(
            torch.zeros(9999, 4, 16), TK, TK, cu_seqlens_q=torch.arange(9999).int(), max_seqlen_q=3, cache_seqlens=3
        ),
    ]
    for attention, q, k in ((sirdar.attention, Q, K), (sirdar.torch.attention, TQ, TK)):
        for given in ({"tensors": one}, {"tensors": {MEGABYTE: q}}, {"scalars": one}, {"scalars": {MEGABYTE: "x"}}):
            calls.append(lambda given=given, attention=attention, q=q, k=k: attention(q, k, k, score_mod="score", **given))
    for call in calls:
        with pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
            call()
        message = str(caught.value)
        assert len(message) < 900 and "Exceeds" not in message, message[:100]


def test_results_of_both_sides_have_one_dtype():
    half = OUT.astype(np.float16)
    with pytest.raises(ValueError, match="^out_b: dtype fp16 differs from out_a's fp32; convert one.$"):
        sirdar.merge(OUT, LSE, half, LSE)
    with pytest.raises(ValueError, match="^out_a, out_b: are"):
        sirdar.torch.merge(T_OUT, T_LSE, T_OUT.half(), T_LSE)
    assert sirdar.merge(half, LSE, half, LSE)[0].dtype == np.float16


def test_a_soft_cap_as_small_as_fp32_has_them_is_right():
    for q in (Q, np.zeros_like(Q)):
        out, lse = sirdar.attention(q, K, K, softcap=2.0**-126, return_lse=True)
        np.testing.assert_allclose(out, 1, atol=1e-6)
        np.testing.assert_allclose(lse, np.log(7), atol=1e-6)
    with pytest.raises(ValueError, match="^softcap"):
        sirdar.plan("fwd s64 h2 d16 softcap:1e-40")


def test_a_corner_that_belongs_to_another_problem():
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    query, key = TQ.transpose(1, 2)[:, :2], TK.transpose(1, 2)
    right = sirdar.torch.scaled_dot_product_attention(query, key, key, causal_lower_right(5, 7))
    assert torch.equal(right, sirdar.torch.attention(TQ[:, :, :2], TK, TK, causal=True).transpose(1, 2))
    for sizes in ((50, 70), (5, 6), (4, 7), (7, 7)):
        for attend in (sirdar.torch.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention):
            with sirdar.torch.sdpa(), pytest.raises(ValueError, match="^attn_mask: is causal_lower_right"):
                attend(query, key, key, causal_lower_right(*sizes))
    # The upper left corner is the same one for all sizes, and torch takes any.
    given = query, key, key, causal_upper_left(50, 70)
    wanted = torch.nn.functional.scaled_dot_product_attention(*given)
    torch.testing.assert_close(sirdar.torch.scaled_dot_product_attention(*given), wanted)


def test_a_ragged_mask_is_told_what_masks_are():
    mask = torch.nested.nested_tensor([torch.ones(5, 7), torch.ones(4, 7)], layout=torch.jagged)
    with pytest.raises(NotImplementedError, match=r"^mask: is a nested tensor; .*: pad it to \[batch\|1"):
        sirdar.torch.attention(TQ, TK, TK, mask=mask)
    with pytest.raises(NotImplementedError, match=r"^attn_mask: is a nested tensor; .*: pad it to"):
        sirdar.torch.scaled_dot_product_attention(TK, TK, TK, mask)


def test_what_jax_traces_is_no_option():
    for name, value in (("softmax_scale", 0.5), ("causal", True), ("window_left", 2), ("dropout_seed", 1)):
        with pytest.raises(TypeError, match=f"^{name}: is traced, and options are"):
            jax.jit(lambda x, name=name: jax_attention(**{name: x}))(value)
    with pytest.raises(TypeError, match="^softmax_scale: is traced.*multiply q by it"):
        jax.grad(lambda scale: jax_attention(softmax_scale=scale).sum())(0.5)
    with pytest.raises(TypeError, match=r"^scalars\['c'\]: is traced.*read it as c"):
        jax.jit(lambda c: jax_attention(score_mod="score * c", scalars={"c": c}))(2.0)
    with pytest.raises(ValueError, match="^dropout_seed: it is given although the problem has no dropout"):
        jax_attention(dropout_seed=3)


@pytest.mark.parametrize("device", [True, 0, None, "gpu", "cuda:", "cuda:-1", "cuda:1.0", "CPU", ""])
def test_selftest_wants_a_device(device):
    with pytest.raises(ValueError, match="^device: .* is none of cpu, cuda and cuda:N"):
        sirdar.selftest(device)


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a GPU")
def test_selftest_of_a_gpu_that_is_not_there():
    for device in ("cuda", "cuda:7"):
        with pytest.raises(RuntimeError, match=f"^device: torch finds no GPU to be {device}"):
            sirdar.selftest(device)


MANY = np.ones((3, 4), np.float32)


def backward_3(**options):
    return fa3._flash_attn_backward(T_OUT, TQ, TK, TK, T_OUT, T_LSE, **options)


def combine(**options):
    given = {"out_partial": torch.stack([T_OUT] * 2), "lse_partial": torch.stack([T_LSE] * 2).transpose(2, 3)}
    return fa3.flash_attn_combine(**{**given, **options})


def pages(**options):
    given = {"q": TQ[0], "k": TK, "v": TK, "cu_seqlens_q": TS_Q, "cu_seqlens_k": TS_K, "block_table": torch.zeros(1, 1).int()}
    return fa2.flash_attn_varlen_func(max_seqlen_q=5, max_seqlen_k=7, **{**given, **options})


@pytest.mark.parametrize("value", [MANY, torch.from_numpy(MANY), torch.ones(2, device="meta"), [MANY], "x"])
@pytest.mark.parametrize(
    "call, names",
    [
        (combine, "out_partial lse_partial out out_dtype"),
        (backward_3, "dq dk dv is_causal causal"),
        (pages, "q k v cu_seqlens_k return_attn_probs dropout_p"),
        (FUNCTIONS["flash_attn_func"][0], "dropout_p return_attn_probs softcap causal window_size"),
        (FUNCTIONS["FA3 flash_attn_func"][0], "attention_chunk num_splits pack_gqa window_size"),
        (FUNCTIONS["sirdar.attention"][0], "softcap causal window_left chunk_size tensors scalars num_threads"),
        (FUNCTIONS["sirdar.torch.attention"][0], "softcap causal window_left dropout_p tensors scalars alignment"),
        (FUNCTIONS["sirdar.torch.backward"][0], "dropout_p tensors scalars"),
        (FUNCTIONS["sirdar.plan"][0], "device softcap window_left"),
        (FUNCTIONS["scaled_dot_product_attention"][0], "scale dropout_p is_causal"),
    ],
)
def test_an_array_is_no_number_and_is_not_printed(call, names, value):
    for name in names.split():
        if name in ("q", "k", "v") and isinstance(value, torch.Tensor) and not value.is_meta:
            continue
        with pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
            call(**{name: value})
        message = str(caught.value)
        assert name in message.partition(":")[0], message
        assert "\n" not in message and len(message) < 300 and message.endswith("."), message


def test_numbers_as_tensors_are_read_by_what_they_hold():
    attention = FUNCTIONS["sirdar.attention"][0]
    attention(window_left=torch.tensor(3))
    with pytest.raises(TypeError):  # whatever was called before
        attention(window_left=torch.tensor(3.0))
    with pytest.raises(ValueError, match="requires_grad"):
        attention(softmax_scale=torch.tensor(0.5, requires_grad=True))
    with torch.no_grad():
        attention(softmax_scale=torch.tensor(0.5, requires_grad=True))
    with pytest.raises((TypeError, ValueError)):
        attention(causal=torch.ones((), device="meta"))


@pytest.mark.parametrize("value", [[], [1], [1, 2, 3], [0.5, 1.0]])
def test_a_cache_leftpad_is_a_whole_number_a_sequence(value):
    q, cache = torch.randn(2, 3, 2, 16), torch.randn(2, 9, 2, 16)
    for module in (fa2, fa3):
        with pytest.raises(ValueError, match="cache_leftpad"):
            module.flash_attn_with_kvcache(q, cache, cache, cache_leftpad=torch.tensor(value))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("value", [[0, -1], [10, 0], [2**31 - 1, 0], [-(2**31), 0]])
def test_a_cache_leftpad_is_a_place_of_the_cache(value, dtype):
    q, cache, table = torch.randn(2, 3, 2, 16), torch.randn(2, 9, 2, 16), torch.tensor([[0], [1]]).int()
    for module, pages in ((fa2, "block_table"), (fa3, "page_table")):
        for more in ({}, {"cache_batch_idx": torch.tensor([1, 0])}, {pages: table}, {"k": q, "v": q, "cache_seqlens": 3}):
            kept = cache.clone()
            with pytest.raises(ValueError, match="^cache_leftpad: holds .*; numbers from 0 to 9"):
                module.flash_attn_with_kvcache(q, cache, cache, cache_leftpad=torch.tensor(value, dtype=dtype), **more)
            assert torch.equal(kept, cache)
    out = fa2.flash_attn_with_kvcache(q, cache, cache, cache_leftpad=torch.tensor([9, 8], dtype=dtype))
    assert out[0].eq(0).all() and torch.equal(out[1], cache[1, 8].expand(3, 2, 16))


@pytest.mark.parametrize("value", [None, 7, "x", np.ones((2, 9, 2, 16)), torch.ones(9, 2, 16), torch.ones(()), torch.ones(2, 9, 2, 16, device="meta")])
def test_a_cache_is_a_tensor_of_four_axes(value):
    q, cache, new = torch.randn(2, 3, 2, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 1, 2, 16)
    calls = [{}, {"cache_batch_idx": torch.tensor([1, 0])}, {"k": new, "v": new, "cache_seqlens": 3}, {"cache_leftpad": torch.tensor([1, 0])}]
    for more in calls:
        for module in (fa2, fa3):
            for name in ("k_cache", "v_cache"):
                given = {"k_cache": cache, "v_cache": cache.clone(), **more, name: value}
                with pytest.raises((TypeError, ValueError, NotImplementedError), match=f"^{name}: "):
                    module.flash_attn_with_kvcache(q, **given)
    for axes in range(4):
        for scale in ({}, {"k_descale": torch.ones(2, 2)}):
            with pytest.raises(ValueError, match=f"^q: has {axes} axes; 4 are needed"):
                fa3.flash_attn_func(torch.ones((2,) * axes), cache, cache, **scale)


def append(cache, added=2, **more):
    new = torch.arange(1.0, 4)[:, None, None, None].expand(3, added, 2, 16)
    return fa2.flash_attn_with_kvcache(torch.randn(3, 1, 2, 16), cache, cache.clone(), new, new, **more)


def test_new_keys_have_places_of_their_own():
    """Two sequences that are appended to in one place of the cache: which key stays there nobody could tell."""
    lengths = torch.tensor([0, 1, 4]).int()
    table = torch.tensor([[0, 1], [2, 3], [4, 1]]).int()
    shared_row, shared_page = torch.tensor([3, 3, 0]), torch.tensor([[0, 1], [0, 3], [4, 5]]).int()
    refused = [
        (torch.zeros(4, 9, 2, 16), {"cache_batch_idx": shared_row}, "^cache_batch_idx: puts two new keys at position 1 of row 3;"),
        (torch.zeros(6, 4, 2, 16), {"block_table": shared_page}, "^block_table: puts two new keys at position 1 of page 0;"),
        (torch.zeros(6, 4, 2, 16), {"block_table": table, "cache_batch_idx": torch.tensor([0, 0, 2])}, "^block_table: puts"),
    ]
    for cache, more, said in refused:
        with pytest.raises(ValueError, match=said):
            append(cache, cache_seqlens=lengths, **more)
        assert cache.eq(0).all()
    cache = torch.zeros(3, 9, 2, 16)
    for v_cache in (cache, cache[:, :, :, :], cache.view_as(cache)):
        with pytest.raises(ValueError, match="^v_cache: lies where k_cache does"):
            new = torch.ones(3, 1, 2, 16)
            fa2.flash_attn_with_kvcache(new, cache, v_cache, new, new, cache_seqlens=lengths)
    assert cache.eq(0).all()
    both = torch.zeros(3, 9, 2, 2, 16)  # of which each has every other head
    fa2.flash_attn_with_kvcache(new, *both.unbind(2), new, 2 * new, cache_seqlens=lengths)
    assert both[1, 1, :, 0, 0].tolist() == [1, 2] and both.sum() == 3 * 2 * 16 * 3
    # What is only read may be shared, and so may a row or page that is written to in different places.
    cache = torch.zeros(6, 4, 2, 16)
    append(cache, cache_seqlens=lengths, block_table=table)
    assert cache[..., 0, 0].tolist() == [[1, 1, 0, 0], [3, 3, 0, 0], [0, 2, 2, 0], [0] * 4, [0] * 4, [0] * 4]
    cache = torch.zeros(4, 9, 2, 16)
    append(cache, cache_seqlens=torch.tensor([0, 2, 4]).int(), cache_batch_idx=shared_row)
    assert cache[3, :, 0, 0].tolist() == [1, 1, 2, 2, 0, 0, 0, 0, 0] and cache[0, 4:6, 0, 0].tolist() == [3, 3]
    append(cache, 0, cache_seqlens=lengths, cache_batch_idx=shared_row)
    one = torch.randn(3, 1, 2, 16)
    fa2.flash_attn_with_kvcache(one, cache, cache, cache_seqlens=lengths, cache_batch_idx=shared_row)


def test_fewer_splits_than_one_leave_the_choice_to_the_kernel():
    for function in (fa2.flash_attn_with_kvcache, fa3.flash_attn_with_kvcache, fa3.flash_attn_func):
        for splits in (-1, -5, 0, 1, 3, torch.tensor(2)):
            assert torch.equal(function(TQ, TK, TK, num_splits=splits), function(TQ, TK, TK))


PADDED, TOKENS = torch.randn(2, 5, 3), torch.ones(2, 5, dtype=torch.bool)
BERT = {
    "index_first_axis": {"input": PADDED, "indices": torch.tensor([1, 0])},
    "index_put_first_axis": {"values": PADDED, "indices": torch.tensor([3, 0]), "first_axis_dim": 4},
    "index_first_axis_residual": {"input": PADDED, "indices": torch.tensor([1, 0])},
    "unpad_input": {"hidden_states": PADDED, "attention_mask": TOKENS, "unused_mask": TOKENS},
    "pad_input": {"hidden_states": PADDED, "indices": torch.tensor([1, 0]), "batch": 2, "seqlen": 3},
    "unpad_input_for_concatenated_sequences": {"hidden_states": PADDED, "attention_mask_in_length": TOKENS.long()},
}


@pytest.mark.parametrize("function, name", [(function, name) for function, given in BERT.items() for name in given])
def test_padding_by_other_names_says_what_it_wants(function, name):
    call, given = getattr(bert_padding, function), BERT[function]
    call(**given)
    wrong = [None, "x", MEGABYTE, [1, 2], PADDED.numpy(), torch.zeros(())]
    if isinstance(given[name], int):
        wrong = COUNT
    elif name == "indices":
        wrong += [torch.zeros(2), torch.zeros(3, 1, dtype=torch.int64)]
    for value in wrong:
        if value is None and name == "unused_mask":
            continue
        with pytest.raises((TypeError, ValueError)) as caught:
            call(**{**given, name: value})
        message = str(caught.value)
        assert message.startswith(f"{name}: ") and message.endswith(".") and len(message) < 300, message


@pytest.mark.parametrize("function, name", [(function, name) for function, given in BERT.items() for name in given])
def test_padding_of_memory_that_was_given_back(function, name):
    value = BERT[function][name]
    if isinstance(value, int):
        return
    gone = value.clone()
    gone.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=f"^{name}: its memory was given back"):
        getattr(bert_padding, function)(**{**BERT[function], name: gone})
