"""FlashAttention-3's interface, computed by this library: the functions of flash_attn_interface with their
names, signatures, defaults and return values. num_splits, pack_gqa, sm_margin and scheduler_metadata
say how, not what, and have no effect on the result; qv is refused by name."""

import torch

from .. import _problem
from .. import torch as _with_torch
from ..torch import _core
from ._cache import Descale, with_kvcache
from ._common import (
    NoBackward,
    check_hints,
    check_packed,
    lse_product,
    maybe_contiguous,  # noqa: F401
    refuse,
    round_multiple,  # noqa: F401
    wants_gradient,
    whole,
    window_of,
    written,
)
from ..torch._attention import check_memory, check_tensor
from ..torch._merge import combined
from ._memory import check_gradients, check_out, check_written
from ._words import in_words

attention, _backward_pass = in_words(_with_torch.attention), in_words(_with_torch.backward)


def _refuse(qv):
    if qv is not None:
        refuse("qv", "concatenate q with qv and k with v along head_dim, up to 512 columns")


def _attend(q, k, v, descale, softcap, cu_seqlens_q=None, **options):
    """(out, lse) of attention(). descale: q_descale, k_descale, v_descale."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, tensor)
    axes = 4 if cu_seqlens_q is None else 3
    if q.dim() != axes:
        raise ValueError(f"q: has {q.dim()} axes; {axes} are needed.")
    if any(scale is not None for scale in descale):
        batch = q.shape[0] if cu_seqlens_q is None else len(cu_seqlens_q) - 1
        scales = Descale(q, batch, *descale)
        options |= scales.options(softcap)
    else:
        scales, options["softcap"] = None, softcap
    inputs = (q, k, v)
    lacks_backward = q.dtype.itemsize == 1 and wants_gradient(inputs)
    if lacks_backward:
        q, k, v = (x.detach() for x in inputs)
    out, lse = attention(q, k, v, cu_seqlens_q=cu_seqlens_q, return_lse=True, **options)
    if scales is not None:
        out = scales.of_output(out, cu_seqlens_q)
    if not lacks_backward:
        return out, lse
    return NoBackward.apply(f"q: {q.dtype} has no backward pass; use bfloat16.", out, lse, *inputs)


def _options(softmax_scale, causal, window_size, attention_chunk, deterministic=True):
    chunk_size = _problem.count("attention_chunk", whole("attention_chunk", attention_chunk))
    return {
        "softmax_scale": softmax_scale, "causal": causal, "chunk_size": chunk_size,
        "deterministic": deterministic, **window_of(window_size),
    }  # fmt: skip


def _results(out, lse, return_attn_probs):
    return (out, lse) if _core.flag("return_attn_probs", return_attn_probs) else out


def _no_parts(out, lse):
    """What FlashAttention hands out of splits that are not merged yet: nothing."""
    return out.new_empty(0), lse.new_empty(0)


def flash_attn_func(
    q,
    k,
    v,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    """q [batch, seqlen_q, num_heads_q, head_dim], k [batch, seqlen_k, num_heads_kv, head_dim], v
    [..., head_dim_v]. Returns out, with return_attn_probs (out, lse); lse fp32 [batch, num_heads_q,
    seqlen_q], -inf where a row sees nothing."""
    _refuse(qv)
    check_hints(num_splits, pack_gqa, sm_margin)
    options = _options(softmax_scale, causal, window_size, attention_chunk, deterministic)
    descale = (q_descale, k_descale, v_descale)
    return _results(*_attend(q, k, v, descale, softcap, **options), return_attn_probs)


def _unpacked(qkv, num_heads_q):
    if num_heads_q is not None:
        num_heads_q = _problem.integer("num_heads_q", num_heads_q)
    if qkv.dim() == 5:
        check_packed("qkv", qkv, -3, 3, "[batch, seqlen, 3, num_heads, head_dim]")
        if num_heads_q not in (None, qkv.shape[3]):
            raise ValueError(f"num_heads_q: is {num_heads_q} and qkv has {qkv.shape[3]} heads; leave it out.")
        return qkv.unbind(-3)
    packed = "[batch, seqlen, num_heads_q + 2 * num_heads_kv, head_dim]"
    if qkv.dim() != 4 or num_heads_q is None:
        raise ValueError(f"num_heads_q: is needed where qkv is {packed}.")
    num_heads_kv, rest = divmod(qkv.shape[2] - num_heads_q, 2)
    if rest or num_heads_kv < 1 or num_heads_q < 1:
        raise ValueError(
            f"num_heads_q: is {num_heads_q}, which leaves {qkv.shape[2] - num_heads_q} of the {qkv.shape[2]} heads of "
            f"qkv {packed} for keys and values; an even number of them, 2 at least, is needed."
        )
    return qkv.split([num_heads_q, num_heads_kv, num_heads_kv], dim=-2)


def flash_attn_qkvpacked_func(
    qkv,
    softmax_scale=None,
    causal=False,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    deterministic=False,
    num_heads_q=None,
    sm_margin=0,
    return_attn_probs=False,
):
    """flash_attn_func with qkv [batch, seqlen, 3, num_heads, head_dim], or [batch, seqlen, num_heads_q +
    2 * num_heads_kv, head_dim] and num_heads_q."""
    check_tensor("qkv", qkv)
    check_hints(sm_margin=sm_margin)
    q, k, v = _unpacked(qkv, num_heads_q)
    options = _options(softmax_scale, causal, window_size, attention_chunk, deterministic)
    descale = (q_descale, k_descale, v_descale)
    return _results(*_attend(q, k, v, descale, softcap, **options), return_attn_probs)


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    seqused_q=None,
    seqused_k=None,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    """Sequences end to end: q [total_q, num_heads_q, head_dim], cu_seqlens [batch + 1] int32; a side whose
    cu_seqlens is None is padded, [batch, seqlen, ...]. seqused [batch] int32 says how much of each sequence
    is used. lse is [num_heads_q, total_q]."""
    _refuse(qv)
    check_hints(num_splits, pack_gqa, sm_margin)
    options = _options(softmax_scale, causal, window_size, attention_chunk, deterministic)
    made = _attend(
        q, k, v, (q_descale, k_descale, v_descale), softcap, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqlen_q=None if cu_seqlens_q is None else whole("max_seqlen_q", max_seqlen_q),
        seqlen_k=None if cu_seqlens_k is None else whole("max_seqlen_k", max_seqlen_k),
        seqused_q=seqused_q, seqused_k=seqused_k, **options,
    )  # fmt: skip
    return _results(*made, return_attn_probs)


def flash_attn_combine(out_partial, lse_partial, out=None, out_dtype=None):
    """Merges results over disjoint keys: out_partial fp32 [splits, batch, seqlen, heads, dim], lse_partial
    fp32 [splits, batch, seqlen, heads]. Returns out [batch, seqlen, heads, dim] in out_dtype (fp32), and
    lse [batch, seqlen, heads]."""
    check_tensor("out_partial", out_partial)
    check_tensor("lse_partial", lse_partial, out_partial.device, "out_partial")
    check_memory("out_partial", out_partial)
    check_memory("lse_partial", lse_partial)
    if (
        out_partial.dim() != 5
        or lse_partial.dim() != 4
        or out_partial.shape[:4] != lse_partial.shape
    ):
        raise ValueError(
            f"out_partial, lse_partial: are {tuple(out_partial.shape)} and {tuple(lse_partial.shape)}; "
            "[splits, batch, seqlen, heads, dim] and [splits, batch, seqlen, heads] are needed."
        )
    if out_partial.shape[0] == 0:
        raise ValueError("out_partial: has no splits; at least one is needed.")
    if out_dtype is not None and not (
        isinstance(out_dtype, torch.dtype) and out_dtype.is_floating_point
    ):
        raise TypeError(f"out_dtype: is {_problem.said(out_dtype)}; a floating dtype of torch is needed.")
    if out is not None:
        check_tensor("out", out, out_partial.device, "out_partial")
        if out.shape != out_partial.shape[1:] or not out.is_floating_point():
            raise ValueError(
                f"out: is {out.dtype} of shape {tuple(out.shape)}; a floating one of shape "
                f"{tuple(out_partial.shape[1:])} is needed."
            )
        check_written({"out": out})
    with torch.no_grad():
        merged, lse = combined(out_partial, lse_partial.float())
        result = merged.to(out_dtype or out_partial.dtype)
        return (result if out is None else out.copy_(result)), lse


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    qv=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    page_table=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    max_seqlen_q=None,
    rotary_seqlens=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
    return_softmax_lse=False,
):
    """Decoding: appends k and v to the caches in place, then attends to the caches; pages of any size. With
    cu_seqlens_q, q is [total_q, num_heads_q, head_dim], with cu_seqlens_k_new k and v are. Returns out, or
    (out, lse, and two empty tensors: partial results of splits, which are merged already)."""
    _refuse(qv)
    check_hints(num_splits, pack_gqa, sm_margin)
    return_softmax_lse = _core.flag("return_softmax_lse", return_softmax_lse)
    out, lse = with_kvcache(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens,
        cache_seqlens, cache_batch_idx, cache_leftpad, page_table, softmax_scale, causal, window_size,
        attention_chunk, softcap, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q,
        cu_seqlens_k_new=cu_seqlens_k_new, descale=(q_descale, k_descale, v_descale), table_name="page_table",
    )  # fmt: skip
    return (out, lse, *_no_parts(out, lse)) if return_softmax_lse else out


def get_scheduler_metadata(
    batch_size,
    max_seqlen_q,
    max_seqlen_k,
    num_heads_q,
    num_heads_kv,
    headdim,
    cache_seqlens,
    qkv_dtype=torch.bfloat16,
    headdim_v=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    cache_leftpad=None,
    page_size=None,
    max_seqlen_k_new=0,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    has_softcap=False,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
):
    """An empty int32 tensor: plans of this library are kept by themselves, there is nothing to prepare."""
    check_hints(num_splits, pack_gqa, sm_margin)
    lengths = (
        ("batch_size", batch_size), ("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k),
        ("num_heads_q", num_heads_q), ("num_heads_kv", num_heads_kv), ("headdim", headdim), ("headdim_v", headdim_v),
        ("page_size", page_size), ("max_seqlen_k_new", max_seqlen_k_new), ("attention_chunk", attention_chunk),
    )  # fmt: skip
    for name, length in lengths:
        whole(name, length)
    _core.flag("causal", causal)
    _core.flag("has_softcap", has_softcap)
    window_of(window_size)
    check_tensor("cache_seqlens", cache_seqlens)
    return cache_seqlens.new_empty(0, dtype=torch.int32)


# --- the layer below, which other frameworks import: some versions of it take window_size, out and causal


def _flash_attn_forward(
    q, k, v, k_new=None, v_new=None, qv=None, out_=None, cu_seqlens_q=None, cu_seqlens_k=None,
    cu_seqlens_k_new=None, seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None,
    page_table=None, kv_batch_idx=None, leftpad_k=None, rotary_cos=None, rotary_sin=None,
    seqlens_rotary=None, q_descale=None, k_descale=None, v_descale=None, softmax_scale=None,
    causal=False, window_size_left=-1, window_size_right=-1, attention_chunk=0, softcap=0.0,
    rotary_interleaved=True, scheduler_metadata=None, num_splits=1, pack_gqa=None, sm_margin=0, *,
    window_size=None, out=None,
):  # fmt: skip
    """Returns out, lse, and two empty tensors: partial results of splits, which are merged already."""
    _refuse(qv)
    check_hints(num_splits, pack_gqa, sm_margin)
    out = out if out_ is None else out_
    check_out(out, q, v)
    descale = (q_descale, k_descale, v_descale)
    window = (window_size_left, window_size_right) if window_size is None else window_size
    if any(x is not None for x in (k_new, v_new, kv_batch_idx, leftpad_k, rotary_cos, rotary_sin)):
        made = with_kvcache(
            q, k, v, k_new, v_new, rotary_cos, rotary_sin, rotary_interleaved, seqlens_rotary, seqused_k,
            kv_batch_idx, leftpad_k, page_table, softmax_scale, causal, window, attention_chunk, softcap,
            cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, cu_seqlens_k_new=cu_seqlens_k_new,
            descale=descale, table_name="page_table",
        )  # fmt: skip
    else:
        options = _options(softmax_scale, causal, window, attention_chunk)
        with torch.no_grad() if page_table is not None else _core.NOTHING:
            made = _attend(
                q, k, v, descale, softcap, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                seqused_q=seqused_q, seqused_k=seqused_k, page_table=page_table,
                seqlen_q=None if cu_seqlens_q is None else whole("max_seqlen_q", max_seqlen_q),
                seqlen_k=None if cu_seqlens_k is None else whole("max_seqlen_k", max_seqlen_k), **options,
            )  # fmt: skip
    result, lse = made
    return written(out, result), lse, *_no_parts(result, lse)


def _flash_attn_backward(
    dout, q, k, v, out, softmax_lse, cu_seqlens_q=None, cu_seqlens_k=None, sequed_q=None,
    sequed_k=None, max_seqlen_q=None, max_seqlen_k=None, dq=None, dk=None, dv=None,
    softmax_scale=None, is_causal=False, window_size_left=-1, window_size_right=-1, softcap=0.0,
    deterministic=False, sm_margin=0, *, causal=False, window_size=None,
):  # fmt: skip
    """Writes dq, dk, dv where they are given; returns softmax_d."""
    check_hints(sm_margin=sm_margin)
    check_gradients((dq, dk, dv), (q, k, v))
    is_causal = _core.flag("is_causal", is_causal) or _core.flag("causal", causal)
    window = (window_size_left, window_size_right) if window_size is None else window_size
    options = _options(softmax_scale, is_causal, window, 0, deterministic)
    options["softcap"] = softcap
    with torch.no_grad():
        made = _backward_pass(
            dout, q, k, v, out, softmax_lse, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
            seqused_q=sequed_q, seqused_k=sequed_k,
            seqlen_q=None if cu_seqlens_q is None else whole("max_seqlen_q", max_seqlen_q),
            seqlen_k=None if cu_seqlens_k is None else whole("max_seqlen_k", max_seqlen_k), **options,
        )  # fmt: skip
        for wanted, grad in zip((dq, dk, dv), made):
            if wanted is not None:
                wanted.copy_(grad)
    return lse_product(dout, out)
