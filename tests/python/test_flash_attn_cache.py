"""The decoding call of the flash-attn interfaces: whatever is refused is refused before a cache is written to, also
where a call of the same shapes was good before."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from sirdar.compat import flash_attn as fa2, flash_attn_interface as fa3
from sirdar.compat.flash_attn.layers.rotary import apply_rotary_emb

ANGLE = torch.linspace(0, 3, 20 * 8).view(20, 8)
ROTARY = {"rotary_cos": ANGLE.cos(), "rotary_sin": ANGLE.sin()}


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def call_of(**changes):
    """Two new keys for each of two sequences of a cache of 12."""
    new = {name: torch.randn(2, 2, 2, 16) for name in ("q", "k", "v")}
    caches = {name: torch.ones(2, 12, 2, 16) for name in ("k_cache", "v_cache")}
    return {**new, **caches, "cache_seqlens": int32(5, 7), "causal": True, **changes}


def refused(interface, call, said, kind=ValueError):
    caches = call["k_cache"], call["v_cache"]
    before = [cache.clone() for cache in caches]
    with pytest.raises(kind, match=said) as caught:
        interface.flash_attn_with_kvcache(**call)
    assert str(caught.value).endswith("."), caught.value
    assert all(torch.equal(cache, was) for cache, was in zip(caches, before))


PAGED = {"k_cache": torch.ones(5, 4, 2, 16), "v_cache": torch.ones(5, 4, 2, 16)}
TABLE = int32(0, 1, 2, 3).view(2, 2)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("dtype, most", [(torch.int32, 2**31 - 1), (torch.int64, 2**31 - 1), (torch.int64, 2**63 - 1)])
def test_lengths_that_no_sum_can_hold(paged, dtype, most):
    for lengths in ([0, most], [most, 0], [0, most - 1]):
        call = call_of(cache_seqlens=torch.tensor(lengths, dtype=dtype), **(PAGED if paged else {}))
        for interface, name in ((fa2, "block_table"), (fa3, "page_table")):
            table = {name: TABLE} if paged else {}
            said = f"^({name if paged else 'k_cache'}: holds|cache_seqlens: holds)"
            refused(interface, {**call, **table}, said, (RuntimeError, ValueError))
    ends = {"k": torch.ones(4, 2, 16), "v": torch.ones(4, 2, 16), "cu_seqlens_k_new": int32(0, 0, 4)}
    lengths = torch.tensor([0, most], dtype=dtype)
    refused(fa3, call_of(cache_seqlens=lengths, **ends), "^(k_cache|cache_seqlens): holds", (RuntimeError, ValueError))


@pytest.mark.parametrize("appends", [False, True])
@pytest.mark.parametrize("beyond", [2**32, 2**32 + 1, -(2**32), 2**31, 2**63 - 1, -(2**63)])
def test_numbers_of_64_bits_that_32_cannot_hold(appends, beyond):
    less = {} if appends else {"k": None, "v": None}
    for name in ("cache_seqlens", "cache_batch_idx", "cache_leftpad"):
        refused(fa2, call_of(**less, **{name: torch.tensor([1, beyond])}), f"^{name}: holds {beyond};")
    lengths = {"cache_seqlens": torch.tensor([1, 2]), **PAGED, "block_table": TABLE}
    refused(fa2, call_of(**less, **lengths, cache_batch_idx=torch.tensor([1, beyond])), "^cache_batch_idx: holds")
    # What 32 bits hold is the same in both.
    narrow, wide = (call_of(**less, cache_seqlens=torch.tensor([5, 7], dtype=dtype), cache_batch_idx=torch.tensor([1, 0], dtype=dtype),
                            q=torch.ones(2, 2, 2, 16)) for dtype in (torch.int32, torch.int64))  # fmt: skip
    wide |= {name: narrow[name] for name in ("k", "v")}
    assert torch.equal(fa2.flash_attn_with_kvcache(**narrow), fa2.flash_attn_with_kvcache(**wide))


def test_a_sequence_that_is_longer_than_the_longest():
    """Also after a call of the same shapes, in which none was."""
    ends = {"q": torch.ones(4, 2, 16), "max_seqlen_q": 3}
    fa3.flash_attn_with_kvcache(**call_of(**ends, cu_seqlens_q=int32(0, 2, 4)))
    for starts in (int32(0, 0, 4), int32(0, 4, 4)):
        refused(fa3, call_of(**ends, cu_seqlens_q=starts), "^max_seqlen_q: is 3, and a sequence of cu_seqlens_q has 4 rows;")
    fa3.flash_attn_with_kvcache(**call_of(**ends, cu_seqlens_q=int32(0, 1, 4)))


def gone(*shape, dtype=torch.float32):
    tensor = torch.ones(shape, dtype=dtype)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("name, shape, dtype", [
    ("alibi_slopes", (2,), torch.float32), ("rotary_cos", (20, 8), torch.float32), ("rotary_sin", (20, 8), torch.float32),
    ("cache_leftpad", (2,), torch.int32), ("cache_seqlens", (2,), torch.int32), ("cache_batch_idx", (2,), torch.int32),
])  # fmt: skip
def test_memory_that_was_given_back(name, shape, dtype):
    more = ROTARY if name.startswith("rotary") else {}
    good = torch.arange(2, dtype=dtype) if shape == (2,) else more[name]
    fa2.flash_attn_with_kvcache(**call_of(**{**more, name: good}))
    refused(fa2, call_of(**{**more, name: gone(*shape, dtype=dtype)}), f"^{name}: its memory was given back")


@pytest.mark.parametrize("value, said", [
    (torch.tensor([1.7, 2.2]), "is torch.float32"), (torch.tensor([True, False]), "is torch.bool"), (int32(1), "has shape"),
    (int32(1, 2, 3), "has shape"), (int32(1, 2).view(2, 1), "is torch.int32 of shape"), (int32(-3, -1), "holds -3"),
    (torch.tensor([0, 2**32]), "holds 4294967296"), (torch.tensor([0, 2**63 - 1]), "holds"), ([1, 2], "a list"), (3, "a int"),
    (gone(2, dtype=torch.int32), "its memory was given back"),
])  # fmt: skip
def test_where_the_rotary_tables_begin(value, said):
    refused(fa3, call_of(**ROTARY, rotary_seqlens=value), f"^rotary_seqlens: {said}", (TypeError, ValueError))
    refused(fa3, call_of(rotary_seqlens=int32(1, 2)), "^rotary_seqlens: is given without rotary_cos;")
    refused(fa3, call_of(**ROTARY, rotary_seqlens=int32(1, 19)), "^rotary_cos: has 20 positions")
    call = call_of(**ROTARY, rotary_seqlens=torch.tensor([1, 18]))
    fa3.flash_attn_with_kvcache(**call)
    wanted = apply_rotary_emb(call["k"], *ROTARY.values(), interleaved=True, seqlen_offsets=int32(1, 18))
    torch.testing.assert_close(call["k_cache"][0, 5:7], wanted[0])
    torch.testing.assert_close(call["k_cache"][1, 7:9], wanted[1])


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.bool])
def test_rotary_tables_have_fractions(dtype):
    for name in ROTARY:
        refused(fa2, call_of(**{**ROTARY, name: ANGLE.to(dtype)}), f"^{name}: has dtype {dtype};")


@pytest.mark.parametrize("value", [torch.ones(2, 2), torch.ones(2), "no", None, 2, 1.0, [True]], ids=str)
@pytest.mark.parametrize("more", [{}, ROTARY], ids=["", "rotary"])
def test_causal_is_a_flag(more, value):
    for interface in (fa2, fa3):
        refused(interface, call_of(**{**more, "causal": value}), "^causal: ", (TypeError, ValueError))


def decoded(q, k_cache, v_cache, lengths, leftpad):
    return fa2.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths, cache_leftpad=leftpad)


def appended(q, k_cache, v_cache, lengths, rows):
    caches = k_cache.clone(), v_cache.clone()
    return fa2.flash_attn_with_kvcache(q, *caches, q, q, cache_seqlens=lengths, cache_batch_idx=rows)


def turned(x, cos, sin, offsets):
    return apply_rotary_emb(x, cos, sin, seqlen_offsets=offsets)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_tracers_are_not_asked_for_numbers(mode):
    caches = torch.randn(2, 12, 2, 16), torch.randn(2, 12, 2, 16)
    for call, given, others in (
        (decoded, (torch.ones(2, 1, 2, 16), *caches, int32(5, 7), int32(1, 2)), (int32(2, 9), int32(0, 6))),
        (appended, (torch.ones(2, 2, 2, 16), *caches, int32(5, 7), int32(0, 1)), (int32(2, 9), int32(1, 0))),
        (turned, (torch.ones(2, 4, 2, 16), ANGLE.cos(), ANGLE.sin(), int32(1, 2)), (int32(5, 0),)),
    ):  # fmt: skip
        made = make_fx(call, tracing_mode=mode)(*given)
        others = (*given[: -len(others)], *others)
        torch.testing.assert_close(made(*others), call(*others))


def test_a_mapped_function_is_not_asked_for_numbers():
    x, offsets = torch.randn(3, 2, 4, 2, 16), torch.tensor([[1, 2], [0, 5], [3, 3]])
    mapped = torch.func.vmap(lambda x, offsets: turned(x, ANGLE.cos(), ANGLE.sin(), offsets))(x, offsets)
    wanted = [turned(one, ANGLE.cos(), ANGLE.sin(), at) for one, at in zip(x, offsets)]
    torch.testing.assert_close(mapped, torch.stack(wanted))
