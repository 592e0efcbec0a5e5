"""torch.ops.flash_attn_3: FlashAttention-3's operators, for who calls those and not its functions, as torch's
own activate_flash_attention_impl("FA3") does."""

import torch

from . import _lower_operators, flash_attn_interface as _interface

_SCHEMAS = (
    "fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new=None, Tensor(v_new!)? v_new=None, "
    "Tensor? q_v=None, Tensor(out!)? out=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? cu_seqlens_k_new=None, Tensor? seqused_q=None, Tensor? seqused_k=None, "
    "int? max_seqlen_q=None, int? max_seqlen_k=None, Tensor? page_table=None, "
    "Tensor? kv_batch_idx=None, Tensor? leftpad_k=None, Tensor? rotary_cos=None, "
    "Tensor? rotary_sin=None, Tensor? seqlens_rotary=None, Tensor? q_descale=None, "
    "Tensor? k_descale=None, Tensor? v_descale=None, float? softmax_scale=None, bool is_causal=False, "
    "int window_size_left=-1, int window_size_right=-1, int attention_chunk=0, float softcap=0., "
    "bool is_rotary_interleaved=False, Tensor? scheduler_metadata=None, int num_splits=0, "
    "bool? pack_gqa=None, int sm_margin=0) -> (Tensor(out!), Tensor, Tensor, Tensor)",
    "bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
    "Tensor(dq!)? dq=None, Tensor(dk!)? dk=None, Tensor(dv!)? dv=None, Tensor? cu_seqlens_q=None, "
    "Tensor? cu_seqlens_k=None, Tensor? seqused_q=None, Tensor? seqused_k=None, "
    "int? max_seqlen_q=None, int? max_seqlen_k=None, float? softmax_scale=None, bool is_causal=False, "
    "int window_size_left=-1, int window_size_right=-1, float softcap=0., bool deterministic=False, "
    "int sm_margin=0) -> (Tensor(dq!), Tensor(dk!), Tensor(dv!), Tensor, Tensor, Tensor, Tensor, Tensor)",
    "fwd_combine(Tensor out_partial, Tensor lse_partial, Tensor(out!)? out=None, "
    "ScalarType? out_dtype=None) -> (Tensor(out!), Tensor)",
    "get_scheduler_metadata(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, "
    "int num_heads_k, int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None, "
    "Tensor? seqused_q=None, Tensor? leftpad_k=None, int? page_size=None, int max_seqlen_k_new=0, "
    "bool is_causal=False, int window_size_left=-1, int window_size_right=-1, int attention_chunk=0, "
    "bool has_softcap=False, int num_splits=0, bool? pack_gqa=None, int sm_margin=0) -> Tensor",
)


def _bwd(dout, q, k, v, out, softmax_lse, dq=None, dk=None, dv=None, *more):
    """dq, dk, dv, softmax_d, and four tensors of FlashAttention's own use, empty."""
    grads = [like.new_empty(like.shape) if grad is None else grad
             for grad, like in ((dq, q), (dk, k), (dv, v))]  # fmt: skip
    product = _interface._flash_attn_backward(
        dout, q, k, v, out, softmax_lse, *more[:6], *grads, *more[6:]
    )
    return *grads, product, *(product.new_empty(0) for _ in range(4))


def _get_scheduler_metadata(*given):
    return given[8].new_empty(0, dtype=torch.int32)


_library = None


def define():
    """Once; another flash-attn that has defined them keeps its own."""
    global _library
    _lower_operators.define()
    if _library is not None or hasattr(torch.ops.flash_attn_3, "fwd"):
        return
    _library = torch.library.Library("flash_attn_3", "FRAGMENT")
    functions = (
        _interface._flash_attn_forward, _bwd, _interface.flash_attn_combine, _get_scheduler_metadata
    )  # fmt: skip
    for schema, function in zip(_SCHEMAS, functions):
        _library.define(schema)
        name = schema.partition("(")[0]
        whole = _with_defaults(name, function)
        _library.impl(name, whole, "CompositeExplicitAutograd")
        # On tensors without data the same functions end in sirdar's operators, which know the shapes.
        torch.library.register_fake(f"flash_attn_3::{name}", whole, lib=_library)


def undefine():
    """As if they had not been: another flash-attn cannot be imported while its operators are there."""
    global _library
    _lower_operators.undefine()
    if _library is not None:
        _library._destroy()
        _library = None


def _with_defaults(name, function):
    """torch leaves out what has its default, and those of FlashAttention's functions differ."""
    arguments = getattr(torch.ops.flash_attn_3, name).default._schema.arguments
    return lambda *given: function(
        *given, *(argument.default_value for argument in arguments[len(given) :])
    )
