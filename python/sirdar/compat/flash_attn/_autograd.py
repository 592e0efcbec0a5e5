"""FlashAttention-2's autograd functions, for who imports those: `FlashAttnFunc.apply(...)`, by place. They compute
what the functions of flash_attn_interface do, with gradients of lse too; is_grad_enabled=False keeps nothing for
a backward pass."""

import torch

from .. import _autograd
from .._common import check_packed, whole
from .._dropout import signed_weights
from ...torch import _core
from ...torch._attention import check_no_gradient
from .flash_attn_interface import _lengths, _options, _results


def _read(ctx, *given):
    """_options(), which refuses numbers and slopes that a gradient is wanted of, as the functions do. In here torch
    has switched gradients off; that ctx knows where they would go says that they were on."""
    if torch.compiler.is_compiling() or not ctx.next_functions:
        return _options(*given)
    with torch.enable_grad():
        options = _options(*given)
        if isinstance(alibi := options["alibi"], torch.Tensor):
            check_no_gradient("alibi_slopes", alibi)
    return options


def _dense(ctx, q, k, v, options, return_softmax, is_grad_enabled):
    return_softmax = _core.flag("return_softmax", return_softmax)
    out, lse, rng = _autograd.forward(ctx, q, k, v, options, is_grad_enabled)
    return _with_weights(ctx, q, k, out, lse, rng, options, return_softmax)


def _ragged(ctx, q, k, v, starts, longest, options, return_softmax, is_grad_enabled, block_table=None):
    """starts: cu_seqlens_q, cu_seqlens_k; longest: max_seqlen_q, max_seqlen_k."""
    return_softmax = _core.flag("return_softmax", return_softmax)
    longest = [whole(f"max_seqlen_{side}", length) for side, length in zip("qk", longest)]
    sides = {"cu_seqlens_q": starts[0], "cu_seqlens_k": starts[1], "seqlen_q": longest[0], "seqlen_k": longest[1]}
    if block_table is not None:
        sides |= {"cu_seqlens_k": None, "seqused_k": _lengths(starts[1])}
    out, lse, rng = _autograd.forward(ctx, q, k, v, options | sides, is_grad_enabled, block_table)
    return _with_weights(ctx, q, k, out, lse, rng, options, return_softmax, *starts, *longest)


def _with_weights(ctx, q, k, out, lse, rng, options, return_softmax, *ragged):
    if not return_softmax:
        return out
    weights = q.new_empty(0) if rng is None else signed_weights(q, k, rng, options, *ragged)
    ctx.mark_non_differentiable(weights)
    return _results(out, lse, weights, True)


def _unpacked(name, packed, count, shape):
    check_packed(name, packed, -3, count, shape)
    return packed.unbind(-3)


class FlashAttnFunc(torch.autograd.Function):
    """flash_attn_func."""

    @staticmethod
    def forward(
        ctx, q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_softmax, is_grad_enabled=True,
    ):  # fmt: skip
        options = _read(ctx, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
        return _dense(ctx, q, k, v, options, return_softmax, is_grad_enabled)

    @staticmethod
    def backward(ctx, dout, *more):
        return *_autograd.gradients(ctx, dout, *more[:1]), *(None,) * 9


class FlashAttnKVPackedFunc(torch.autograd.Function):
    """flash_attn_kvpacked_func."""

    @staticmethod
    def forward(
        ctx, q, kv, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_softmax, is_grad_enabled=True,
    ):  # fmt: skip
        k, v = _unpacked("kv", kv, 2, "[batch, seqlen_k, 2, num_heads_kv, head_dim]")
        options = _read(ctx, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
        return _dense(ctx, q, k, v, options, return_softmax, is_grad_enabled)

    @staticmethod
    def backward(ctx, dout, *more):
        dq, *dkv = _autograd.gradients(ctx, dout, *more[:1])
        return dq, torch.stack(dkv, -3), *(None,) * 9


class FlashAttnQKVPackedFunc(torch.autograd.Function):
    """flash_attn_qkvpacked_func."""

    @staticmethod
    def forward(
        ctx, qkv, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_softmax, is_grad_enabled=True,
    ):  # fmt: skip
        q, k, v = _unpacked("qkv", qkv, 3, "[batch, seqlen, 3, num_heads, head_dim]")
        options = _read(ctx, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
        return _dense(ctx, q, k, v, options, return_softmax, is_grad_enabled)

    @staticmethod
    def backward(ctx, dout, *more):
        return torch.stack(_autograd.gradients(ctx, dout, *more[:1]), -3), *(None,) * 9


class FlashAttnVarlenFunc(torch.autograd.Function):
    """flash_attn_varlen_func."""

    @staticmethod
    def forward(
        ctx, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_softmax, block_table, is_grad_enabled=True,
    ):  # fmt: skip
        options = _read(ctx, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
        return _ragged(
            ctx, q, k, v, (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k), options, return_softmax,
            is_grad_enabled, block_table,
        )  # fmt: skip

    @staticmethod
    def backward(ctx, dout, *more):
        return *_autograd.gradients(ctx, dout, *more[:1]), *(None,) * 14


class FlashAttnVarlenKVPackedFunc(torch.autograd.Function):
    """flash_attn_varlen_kvpacked_func."""

    @staticmethod
    def forward(
        ctx, q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_softmax, is_grad_enabled=True,
    ):  # fmt: skip
        k, v = _unpacked("kv", kv, 2, "[total_k, 2, num_heads_kv, head_dim]")
        options = _read(ctx, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
        return _ragged(
            ctx, q, k, v, (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k), options, return_softmax,
            is_grad_enabled,
        )  # fmt: skip

    @staticmethod
    def backward(ctx, dout, *more):
        dq, *dkv = _autograd.gradients(ctx, dout, *more[:1])
        return dq, torch.stack(dkv, -3), *(None,) * 13


class FlashAttnVarlenQKVPackedFunc(torch.autograd.Function):
    """flash_attn_varlen_qkvpacked_func."""

    @staticmethod
    def forward(
        ctx, qkv, cu_seqlens, max_seqlen, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_softmax, is_grad_enabled=True,
    ):  # fmt: skip
        q, k, v = _unpacked("qkv", qkv, 3, "[total, 3, num_heads, head_dim]")
        options = _read(ctx, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
        return _ragged(
            ctx, q, k, v, (cu_seqlens, cu_seqlens), (max_seqlen, max_seqlen), options, return_softmax, is_grad_enabled
        )

    @staticmethod
    def backward(ctx, dout, *more):
        return torch.stack(_autograd.gradients(ctx, dout, *more[:1]), -3), *(None,) * 11
