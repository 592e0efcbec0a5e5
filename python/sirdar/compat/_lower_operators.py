"""torch.ops.flash_attn and the two private operators of torch.ops.flash_attn_3: the layer below FlashAttention's
functions, which is found in graphs by these names. Schemas as flash-attn 2.8.3 and later releases of
FlashAttention-3 register them."""

import inspect

import torch

from . import flash_attn_interface as _interface_3
from ._dropout import shape_of_weights
from .flash_attn import flash_attn_interface as _interface_2

_FOUR = "(Tensor, Tensor, Tensor, Tensor)"
_GRADS = ("dq", "dk", "dv")
_STARTS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, "
_MASKS = (
    "float dropout_p, float softmax_scale, bool causal, SymInt window_size_left, SymInt window_size_right, "
    "float softcap, Tensor? alibi_slopes, "
)
_GIVEN = (
    "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
    "Tensor(a6!)? dq, Tensor(a7!)? dk, Tensor(a8!)? dv, "
)
# name: (schema, arguments that are written to)
_SCHEMAS = {
    "flash_attn::_flash_attn_forward": (
        f"(Tensor q, Tensor k, Tensor v, {_MASKS}bool return_softmax) -> {_FOUR}", (),
    ),
    "flash_attn::_flash_attn_varlen_forward": (
        f"(Tensor q, Tensor k, Tensor v, {_STARTS}float dropout_p, float softmax_scale, bool causal, "
        "SymInt window_size_left=-1, SymInt window_size_right=-1, float softcap=0., Tensor? alibi_slopes=None, "
        "bool return_softmax=False, Tensor? block_table=None, Tensor? leftpad_k=None, Tensor? seqused_k=None, "
        f"bool zero_tensors=False) -> {_FOUR}", (),
    ),
    "flash_attn::_flash_attn_backward": (
        f"({_GIVEN}{_MASKS}bool deterministic, Tensor? rng_state=None) -> Tensor", _GRADS,
    ),
    "flash_attn::_flash_attn_varlen_backward": (
        f"({_GIVEN}{_STARTS}{_MASKS}bool deterministic, Tensor? rng_state=None, bool zero_tensors=False) "
        "-> Tensor", _GRADS,
    ),
    "flash_attn_3::_flash_attn_forward": (
        "(Tensor q, Tensor k, Tensor v, Tensor? k_new=None, Tensor? v_new=None, Tensor? qv=None, "
        "Tensor? out_=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
        "Tensor? cu_seqlens_k_new=None, Tensor? seqused_q=None, Tensor? seqused_k=None, "
        "SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, Tensor? page_table=None, "
        "Tensor? kv_batch_idx=None, Tensor? leftpad_k=None, Tensor? rotary_cos=None, "
        "Tensor? rotary_sin=None, Tensor? seqlens_rotary=None, Tensor? q_descale=None, "
        "Tensor? k_descale=None, Tensor? v_descale=None, float? softmax_scale=None, bool causal=False, "
        "SymInt window_size_left=-1, SymInt window_size_right=-1, SymInt attention_chunk=0, "
        "float softcap=0., bool rotary_interleaved=True, Tensor? scheduler_metadata=None, "
        f"SymInt num_splits=1, bool? pack_gqa=None, SymInt sm_margin=0) -> {_FOUR}", (),
    ),
    "flash_attn_3::_flash_attn_backward": (
        "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
        "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? sequed_q=None, "
        "Tensor? sequed_k=None, SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, "
        "Tensor(a12!)? dq=None, Tensor(a13!)? dk=None, Tensor(a14!)? dv=None, float? softmax_scale=None, "
        "bool is_causal=False, SymInt window_size_left=-1, SymInt window_size_right=-1, float softcap=0., "
        "bool deterministic=False, SymInt sm_margin=0) -> Tensor", _GRADS,
    ),
}  # fmt: skip


def _forward_3(q, k, v, k_new=None, v_new=None, qv=None, out_=None, *more):
    """FlashAttention-3's forward pass as an operator whose schema writes to nothing."""
    for name, tensor in (("k_new", k_new), ("out_", out_)):
        if tensor is not None:
            raise ValueError(
                f"{name}: asks torch.ops.flash_attn_3._flash_attn_forward to write to an argument, of which its "
                "schema says nothing; call torch.ops.flash_attn_3.fwd."
            )
    return _interface_3._flash_attn_forward(q, k, v, None, v_new, qv, None, *more)


def _with_shape_of_weights(function):
    """The fake kernel of a forward pass: what dropout keeps is not known without data, its shape is."""
    signature = inspect.signature(function)

    def fake(*given):
        given = signature.bind(*given).arguments
        wants = given.pop("return_softmax", False) and given["dropout_p"] > 0
        out, lse, weights, rng = function(**given)
        if wants:
            q, starts = given["q"], given.get("cu_seqlens_q")
            lengths = (q.shape[0], q.shape[1], given["k"].shape[1])
            if starts is not None:
                lengths = (starts.shape[0] - 1, given["max_seqlen_q"], given["max_seqlen_k"])
            weights = q.new_empty(shape_of_weights(q.shape[-2], *lengths))
        return out, lse, weights, rng

    return fake


def _save_3(ctx, inputs, output):
    named = inspect.signature(_interface_3._flash_attn_forward).bind(*inputs).arguments
    if named.get("attention_chunk"):
        raise NotImplementedError(
            "attention_chunk: this operator has no gradients with it; call flash_attn_func, which has them."
        )
    kept = (named.get(n) for n in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"))
    ctx.save_for_backward(*inputs[:3], *output[:2], *kept)
    ctx.lengths = named.get("max_seqlen_q"), named.get("max_seqlen_k")
    ctx.masks = [
        named[n] for n in ("softmax_scale", "causal", "window_size_left", "window_size_right")
    ]
    ctx.softcap, ctx.num_others = named["softcap"], len(inputs) - 3


def _differentiate_3(ctx, dout, *_):
    q, k, v, out, lse, *kept = ctx.saved_tensors
    grads = [torch.empty_like(tensor) for tensor in (q, k, v)]
    torch.ops.flash_attn_3._flash_attn_backward(
        dout, q, k, v, out, lse, *kept, *ctx.lengths, *grads, *ctx.masks, ctx.softcap
    )
    return *grads, *(None,) * ctx.num_others


def _kernels(name):
    """What computes an operator, and what tells its shapes: the same function, which on tensors without data ends
    in sirdar's operators."""
    space, _, short = name.partition("::")
    if space == "flash_attn_3":
        function = _forward_3 if short.endswith("forward") else _interface_3._flash_attn_backward
        return function, function
    function = getattr(_interface_2, short)
    return function, _with_shape_of_weights(function) if short.endswith("forward") else function


_defined = {}


def define():
    """Those that nobody else has defined."""
    for name, (schema, mutated) in _SCHEMAS.items():
        space, _, short = name.partition("::")
        if hasattr(getattr(torch.ops, space), short):
            continue
        function, fake = _kernels(name)
        made = torch.library.custom_op(name, function, mutates_args=mutated, schema=schema)
        made.register_fake(fake)
        if name == "flash_attn_3::_flash_attn_forward":
            made.register_autograd(_differentiate_3, setup_context=_save_3)
        _defined[name] = made


def undefine():
    for made in _defined.values():
        made._lib._destroy()
    _defined.clear()


def named(short):
    """torch.ops.flash_attn's operator where it is this library's, else the function that it would call."""
    if f"flash_attn::{short}" in _defined:
        return getattr(torch.ops.flash_attn, short)
    return getattr(_interface_2, short)
