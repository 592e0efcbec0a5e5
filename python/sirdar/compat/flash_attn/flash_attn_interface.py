"""flash_attn.flash_attn_interface: the functions of FlashAttention-2, and the layer below them that
other frameworks import. Arguments mean what they mean there, with these differences: any device, fp32
too, head_dim up to 512, lse of a row without keys is -inf, softcap and dropout may be combined, and
rng_state lies on the CPU. docs/migration.md has the tables."""

import torch

from ... import torch as _with_torch
from ...torch import _core
from .._cache import with_kvcache
from .._common import (
    NoBackward,
    check_hints,
    check_packed,
    lse_product,
    maybe_contiguous,  # noqa: F401
    real_or_none,
    refuse,
    round_multiple,  # noqa: F401
    wants_gradient,
    whole,
    window_of,
)
from .._dropout import signed_weights
from .._memory import check_gradients
from .._words import in_words
from ...torch._attention import check_tensor, draw_rng

USE_TRITON_ROCM = False

attention = in_words(_with_torch.attention)
attention_varlen = in_words(_with_torch.attention_varlen, page_table="block_table", seqused_k="cu_seqlens_k")
backward = in_words(_with_torch.backward, dropout_rng="rng_state")


def _get_block_size_n(device, head_dim, is_dropout, is_causal):
    """Keys a block of S_dmask: it is scaled row by row, so one block is as long as any row."""
    return 1 << 30


def _results(out, lse, weights, return_attn_probs):
    return (out, lse, weights) if return_attn_probs else out


def _lengths(cu_seqlens_k):
    """[batch] int32 of prefix sums."""
    check_tensor("cu_seqlens_k", cu_seqlens_k)
    if cu_seqlens_k.dim() != 1:
        raise ValueError(f"cu_seqlens_k: has shape {tuple(cu_seqlens_k.shape)}; [batch + 1] is needed.")
    return cu_seqlens_k.diff().to(torch.int32)


def _options(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic):
    return {
        "dropout_p": _core.real("dropout_p", dropout_p), "causal": _core.flag("causal", causal),
        "softmax_scale": real_or_none("softmax_scale", softmax_scale), "softcap": _core.real("softcap", softcap),
        "alibi": alibi_slopes, "deterministic": _core.flag("deterministic", deterministic), **window_of(window_size),
    }  # fmt: skip


def _dense(q, k, v, options, return_attn_probs):
    return_attn_probs = _core.flag("return_attn_probs", return_attn_probs)
    rng = draw_rng(options["dropout_p"])
    out, lse = attention(q, k, v, dropout_rng=rng, return_lse=True, **options)
    weights = q.new_empty(0)
    if return_attn_probs and rng is not None:
        weights = signed_weights(q, k, rng, options)
    return _results(out, lse, weights, return_attn_probs)


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """q [batch, seqlen_q, num_heads_q, head_dim], k and v [batch, seqlen_k, num_heads_kv, head_dim].

    Causal masks and windows are aligned to the bottom right corner. alibi_slopes: fp32 [num_heads_q] or
    [batch, num_heads_q]. Returns out, with return_attn_probs (out, lse, S_dmask): lse fp32 [batch,
    num_heads_q, seqlen_q], S_dmask empty without dropout.
    """
    options = _options(
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic
    )
    return _dense(q, k, v, options, return_attn_probs)


def flash_attn_kvpacked_func(
    q,
    kv,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """flash_attn_func with kv [batch, seqlen_k, 2, num_heads_kv, head_dim]."""
    check_packed("kv", kv, -3, 2, "[batch, seqlen_k, 2, num_heads_kv, head_dim]")
    options = _options(
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic
    )
    return _dense(q, *kv.unbind(-3), options, return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """flash_attn_func with qkv [batch, seqlen, 3, num_heads, head_dim]."""
    check_packed("qkv", qkv, -3, 3, "[batch, seqlen, 3, num_heads, head_dim]")
    options = _options(
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic
    )
    return _dense(*qkv.unbind(-3), options, return_attn_probs)


def _ragged(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, options, return_attn_probs,
    page_table=None, seqused_k=None,
):  # fmt: skip
    return_attn_probs = _core.flag("return_attn_probs", return_attn_probs)
    rng = draw_rng(options["dropout_p"])
    if page_table is not None and seqused_k is None:
        seqused_k = _lengths(cu_seqlens_k)
    inputs = (q, k, v)
    for name, tensor in zip("qkv", inputs):
        check_tensor(name, tensor)
    lacks_backward = page_table is not None and wants_gradient(inputs)
    if lacks_backward:
        q, k, v = (x.detach() for x in inputs)
    out, lse = attention_varlen(
        q, k, v, cu_seqlens_q, None if page_table is not None else cu_seqlens_k,
        whole("max_seqlen_q", max_seqlen_q), whole("max_seqlen_k", max_seqlen_k), page_table=page_table, seqused_k=seqused_k,
        dropout_rng=rng, return_lse=True, **options,
    )  # fmt: skip
    if lacks_backward:
        sentence = (
            "block_table: attention over pages has no backward pass; gather the pages into k and v."
        )
        out, lse = NoBackward.apply(sentence, out, lse, *inputs)
    weights = q.new_empty(0)
    if return_attn_probs and rng is not None:
        weights = signed_weights(
            q, k, rng, options, cu_seqlens_q, cu_seqlens_k, whole("max_seqlen_q", max_seqlen_q), whole("max_seqlen_k", max_seqlen_k)
        )
    return _results(out, lse, weights, return_attn_probs)


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    """Sequences end to end: q [total_q, num_heads_q, head_dim], k and v [total_k, num_heads_kv,
    head_dim], cu_seqlens [batch + 1] int32. With block_table [batch, max_pages] int32, k and v are pages
    [num_pages, page_size, num_heads_kv, head_dim] of any size and cu_seqlens_k says how many keys each
    sequence has. lse is [num_heads_q, total_q]."""
    options = _options(
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic
    )
    return _ragged(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, options, return_attn_probs,
        block_table,
    )  # fmt: skip


def flash_attn_varlen_kvpacked_func(
    q,
    kv,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """flash_attn_varlen_func with kv [total_k, 2, num_heads_kv, head_dim]."""
    check_packed("kv", kv, -3, 2, "[total_k, 2, num_heads_kv, head_dim]")
    options = _options(
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic
    )
    return _ragged(
        q, *kv.unbind(-3), cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, options,
        return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv,
    cu_seqlens,
    max_seqlen,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """flash_attn_varlen_func with qkv [total, 3, num_heads, head_dim]."""
    check_packed("qkv", qkv, -3, 3, "[total, 3, num_heads, head_dim]")
    options = _options(
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic
    )
    return _ragged(
        *qkv.unbind(-3), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, options, return_attn_probs
    )


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
):
    """Decoding: appends k and v (turned by the rotary tables, if given) to the caches in place from
    cache_seqlens on, then attends to the caches. Pages may have any size. num_splits has no effect on
    the result: the plan divides the keys as it sees fit. Returns out, or (out, lse)."""
    check_hints(num_splits)
    return_softmax_lse = _core.flag("return_softmax_lse", return_softmax_lse)
    out, lse = with_kvcache(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, rotary_interleaved, None, cache_seqlens,
        cache_batch_idx, cache_leftpad, block_table, softmax_scale, causal, window_size, 0,
        softcap, alibi_slopes,
    )  # fmt: skip
    return (out, lse) if return_softmax_lse else out


# --- the layer below, which other frameworks import -------------------------------------------------


def _flash_attn_forward(
    q, k, v, dropout_p, softmax_scale, causal, window_size_left=-1, window_size_right=-1, softcap=0.0,
    alibi_slopes=None, return_softmax=False,
):  # fmt: skip
    """Returns out, lse, S_dmask (empty without dropout) and rng_state, int64 [2] on the CPU."""
    window = (window_size_left, window_size_right)
    options = _options(dropout_p, softmax_scale, causal, window, softcap, alibi_slopes, True)
    rng = draw_rng(dropout_p)
    with torch.no_grad():
        out, lse = attention(q, k, v, dropout_rng=rng, return_lse=True, **options)
        drawn = _core.flag("return_softmax", return_softmax) and rng is not None
        weights = signed_weights(q, k, rng, options) if drawn else q.new_empty(0)
    return out, lse, weights, torch.zeros(2, dtype=torch.int64, device="cpu") if rng is None else rng


def _flash_attn_varlen_forward(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
    window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, return_softmax=False,
    block_table=None, leftpad_k=None, seqused_k=None, zero_tensors=False, num_splits=0,
):  # fmt: skip
    """As _flash_attn_forward, for sequences end to end. zero_tensors asks for what is always so: every
    row of the outputs is written. num_splits has no effect on the result."""
    if leftpad_k is not None:
        refuse("leftpad_k", "pass cache_leftpad to flash_attn_with_kvcache")
    check_hints(num_splits)
    if num_splits > 1 and block_table is not None:
        raise RuntimeError("num_splits: more than 1 is not allowed with block_table; pass 0.")
    window = (window_size_left, window_size_right)
    options = _options(dropout_p, softmax_scale, causal, window, softcap, alibi_slopes, True)
    rng = draw_rng(dropout_p)
    if block_table is not None and seqused_k is None:
        seqused_k = _lengths(cu_seqlens_k)
    with torch.no_grad():
        out, lse = attention_varlen(
            q, k, v, cu_seqlens_q, None if block_table is not None else cu_seqlens_k,
            whole("max_seqlen_q", max_seqlen_q), whole("max_seqlen_k", max_seqlen_k), page_table=block_table, seqused_k=seqused_k,
            dropout_rng=rng, return_lse=True, **options,
        )  # fmt: skip
        weights = q.new_empty(0)
        if _core.flag("return_softmax", return_softmax) and rng is not None:
            weights = signed_weights(
                q,
                k,
                rng,
                options,
                cu_seqlens_q,
                cu_seqlens_k,
                whole("max_seqlen_q", max_seqlen_q),
                whole("max_seqlen_k", max_seqlen_k),
            )
    return out, lse, weights, torch.zeros(2, dtype=torch.int64, device="cpu") if rng is None else rng


def _write_gradients(dout, out, grads, made):
    """Copies gradients to where they are wanted; gives softmax_d, fp32 [batch, num_heads_q, seqlen_q]."""
    for wanted, grad in zip(grads, made):
        if wanted is not None:
            wanted.copy_(grad)
    return lse_product(dout, out)


def _rng_for(dropout_p, rng_state):
    if not dropout_p or rng_state is None:
        return None
    check_tensor("rng_state", rng_state)
    return rng_state.cpu()


def _flash_attn_backward(
    dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal,
    window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, deterministic=False,
    rng_state=None,
):  # fmt: skip
    """Writes dq, dk, dv (each may be None) and returns softmax_d."""
    check_gradients((dq, dk, dv), (q, k, v))
    window = (window_size_left, window_size_right)
    options = _options(
        dropout_p, softmax_scale, causal, window, softcap, alibi_slopes, deterministic
    )
    with torch.no_grad():
        made = backward(
            dout, q, k, v, out, softmax_lse, dropout_rng=_rng_for(dropout_p, rng_state), **options
        )
        return _write_gradients(dout, out, (dq, dk, dv), made)


def _flash_attn_varlen_backward(
    dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
    max_seqlen_k, dropout_p, softmax_scale, causal, window_size_left=-1, window_size_right=-1,
    softcap=0.0, alibi_slopes=None, deterministic=False, rng_state=None, zero_tensors=False,
):  # fmt: skip
    """As _flash_attn_backward, for sequences end to end."""
    check_gradients((dq, dk, dv), (q, k, v))
    window = (window_size_left, window_size_right)
    options = _options(
        dropout_p, softmax_scale, causal, window, softcap, alibi_slopes, deterministic
    )
    with torch.no_grad():
        made = backward(
            dout, q, k, v, out, softmax_lse, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
            seqlen_q=whole("max_seqlen_q", max_seqlen_q), seqlen_k=whole("max_seqlen_k", max_seqlen_k),
            dropout_rng=_rng_for(dropout_p, rng_state), **options,
        )  # fmt: skip
        return _write_gradients(dout, out, (dq, dk, dv), made)


def __getattr__(name):
    """_wrapped_flash_attn_forward, ..._varlen_backward: the operators around these functions, which are there
    after sirdar.compat.install(); before it the functions."""
    short = name.removeprefix("_wrapped")
    if short != name and short in globals():
        from .._lower_operators import named

        return named(short)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# What is made of what stands above.
from .. import flash_attn_2_cuda as flash_attn_gpu  # noqa: E402,F401
from ._autograd import (  # noqa: E402,F401
    FlashAttnFunc,
    FlashAttnKVPackedFunc,
    FlashAttnQKVPackedFunc,
    FlashAttnVarlenFunc,
    FlashAttnVarlenKVPackedFunc,
    FlashAttnVarlenQKVPackedFunc,
)

flash_attn_cuda = flash_attn_gpu  # its name in earlier releases, by which some ask whether all is well
