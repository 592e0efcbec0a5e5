"""sirdar.torch.attention: checks and defaults around the operators of _ops.py."""

import inspect
from typing import Any, Callable, Dict, Optional, Tuple, Union

import torch
from torch.autograd import forward_ad

from .. import _problem
from . import _core, _eager, _ops, _short


PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_BESIDE_SCORES = ("attn_mask", "bias", "mask")


def check_tensor(name, tensor, device=None, first="q"):
    """TypeError or NotImplementedError for what is no plain tensor with data on `device`."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"{name}: a {type(tensor).__name__} was given; sirdar.torch takes torch tensors "
            "(sirdar.attention takes those of other libraries)."
        )
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout)
        instead = "pad it, or pass its values with cu_seqlens to attention_varlen"
        if name in _BESIDE_SCORES:
            instead = "pad it to [batch|1, num_heads_q|1, seqlen_q|1, seqlen_k|1]"
        raise NotImplementedError(f"{name}: is a {kind} tensor; only dense memory is read: {instead}.")
    if tensor.is_meta:
        raise NotImplementedError(
            f"{name}: lies on the meta device, which has no data; move the model to a real device."
        )
    if device is not None and tensor.device != device:
        raise ValueError(
            f"{name}: lies on {tensor.device} and {first} on {device}; move all tensors to one device."
        )


def check_memory(name, tensor):
    """torch's operators read where a tensor points whose memory was given back."""
    if torch.compiler.is_compiling() or type(tensor) not in PLAIN_TYPES:
        return
    try:
        is_gone = not tensor.untyped_storage().nbytes() and tensor.numel()
    except (NotImplementedError, RuntimeError):  # tensors of torch.func
        return
    if is_gone and not tensor._is_zerotensor():
        raise ValueError(f"{name}: its memory was given back; pass a tensor that has some.")


def check_no_gradient(name, tensor):
    if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name}: requires a gradient, and there is none for it here; detach() it, or write it as "
            "an expression tensor of score_mod."
        )


def autocast(*tensors):
    """Under torch.autocast floating tensors take its dtype, as torch's own attention does."""
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return [t.to(dtype) if t.is_floating_point() and t.dtype.itemsize > 1 else t for t in tensors]


def _check_dtypes(q, k, v):
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(
            f"q, k, v: have dtypes {q.dtype}, {k.dtype} and {v.dtype}; all three must have one: "
            "convert them, or call under torch.autocast."
        )


def checked_inputs(q, k, v):
    """q, k and v, under autocast in its dtype."""
    check_tensor("q", q)
    check_tensor("k", k, q.device)
    check_tensor("v", v, q.device)
    kind = q.device.type
    if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        q, k, v = autocast(q, k, v)
    _check_dtypes(q, k, v)
    return q, k, v


def _check_rng(dropout_p, rng):
    """dropout_rng is seed and offset, int64 [2] on the CPU; that neither is negative is seen where they
    are read."""
    if not dropout_p:
        raise ValueError(
            "dropout_rng: is given and dropout_p is 0, so nothing would read it; leave it out, or pass "
            "dropout_p."
        )
    if isinstance(rng, torch.Tensor):
        check_tensor("dropout_rng", rng)
    if not isinstance(rng, torch.Tensor):
        given = f"a {type(rng).__name__}"
    elif rng.dtype != torch.int64 or tuple(rng.shape) != (2,) or rng.device.type != "cpu":
        given = f"{rng.dtype} of shape {tuple(rng.shape)} on {rng.device}"
    else:
        return
    raise ValueError(
        f"dropout_rng: is {given}; torch.int64 of shape (2,) on the CPU is needed, seed and offset."
    )


def draw_rng(dropout_p, rng=None):
    """Seed and offset [2] of dropout from torch's own generator, so torch.manual_seed decides."""
    is_number = type(dropout_p) in (int, float)
    if not torch.compiler.is_compiling() and (not is_number or dropout_p != 0):
        dropout_p = _problem.switch("dropout_p", dropout_p)
    if rng is not None:
        _check_rng(dropout_p, rng)
    if not dropout_p:
        return None
    if _eager.is_mapped():
        raise NotImplementedError(
            "dropout_p: torch.func.vmap over attention does not take dropout; loop over the mapped axis."
        )
    return torch.randint(0, 2**62, (2,), dtype=torch.int64, device="cpu") if rng is None else rng


def _with_four_axes(name, tensor):
    """A bias or mask with fewer axes than [batch, num_heads_q, seqlen_q, seqlen_k] lacks the first."""
    if tensor is None or tensor.dim() == 4:
        return tensor
    if tensor.dim() > 4:
        raise ValueError(
            f"{name}: has {tensor.dim()} axes; [batch|1, num_heads_q|1, seqlen_q|1, seqlen_k|1] or a "
            "tail of it is allowed."
        )
    return tensor[(None,) * (4 - tensor.dim())]


def _refuse_tangents(tensors):
    """Forward-mode differentiation would lose its tangents silently."""
    for tensor in tensors:
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(
                "q, k, v: carry tangents of forward-mode differentiation (jvp, jacfwd), and attention has "
                "reverse mode only; use torch.func.vjp, or torch's attention with its math backend."
            )


def _check_differentiable(q, k, v, page_table):
    """What has no backward pass is refused before the forward pass."""
    if not torch.is_grad_enabled() or not (q.requires_grad or k.requires_grad or v.requires_grad):
        return
    if page_table is not None:
        raise NotImplementedError(
            "page_table: attention over pages has no backward pass; call it under torch.no_grad(), or "
            "gather the pages into k and v."
        )
    if q.dtype.itemsize == 1:
        raise NotImplementedError(
            f"q: {q.dtype} has no backward pass; call it under torch.no_grad(), or use bfloat16."
        )


def _prepared(q, k, v, expression, inputs):
    """The operators' tensor arguments, checked: q, k, v, bias, sink, tensors, others (without rng), and
    whether all are plain tensors, no subclasses."""
    plain = type(q) in PLAIN_TYPES and type(k) in PLAIN_TYPES and type(v) in PLAIN_TYPES
    device = q.device
    for name, tensor in zip(_core.INPUTS, inputs):
        if tensor is not None:
            check_tensor(name, tensor, device)
            plain = plain and type(tensor) in PLAIN_TYPES
    for tensor in expression.tensors:
        check_tensor("tensors", tensor, device)
        plain = plain and type(tensor) in PLAIN_TYPES
    bias, sink, mask, alibi, *others = inputs
    check_no_gradient("alibi", alibi)
    bias, mask = _with_four_axes("bias", bias), _with_four_axes("mask", mask)
    if forward_ad._current_level >= 0:
        _refuse_tangents((q, k, v, bias, sink, *expression.tensors))
    return [q, k, v, bias, sink, expression.tensors, mask, alibi, *others], plain


def _is_zero(number):
    return type(number) in (int, float) and number == 0


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_left: Optional[int] = None,
    window_right: Optional[int] = None,
    chunk_size: int = 0,
    alignment: str = "bottom_right",
    softcap: float = 0.0,
    softmax_scale: Optional[float] = None,
    bias: Optional[torch.Tensor] = None,
    mask: Optional[torch.Tensor] = None,
    alibi: Optional[torch.Tensor] = None,
    sink: Optional[torch.Tensor] = None,
    dropout_p: float = 0.0,
    dropout_rng: Optional[torch.Tensor] = None,
    cu_seqlens_q: Optional[torch.Tensor] = None,
    cu_seqlens_k: Optional[torch.Tensor] = None,
    seqlen_q: Optional[int] = None,
    seqlen_k: Optional[int] = None,
    seqused_q: Optional[torch.Tensor] = None,
    seqused_k: Optional[torch.Tensor] = None,
    page_table: Optional[torch.Tensor] = None,
    document_q: Optional[torch.Tensor] = None,
    document_k: Optional[torch.Tensor] = None,
    score_mod: Union[str, Callable, None] = None,
    mask_mod: Union[str, Callable, None] = None,
    tensors: Optional[Dict[str, torch.Tensor]] = None,
    scalars: Optional[Dict[str, float]] = None,
    deterministic: bool = True,
    return_lse: bool = False,
    return_max_logit: bool = False,
) -> Union[torch.Tensor, Tuple[torch.Tensor, ...]]:
    """Exact attention of torch tensors, differentiable in q, k, v, bias, sink, tensors and through lse.

    q [batch, seqlen_q, num_heads_q, head_dim], k [batch, seqlen_k, num_heads_kv, head_dim],
    v [batch, seqlen_k, num_heads_kv, head_dim_v]; ragged sides are [total, heads, dim] with
    cu_seqlens [batch + 1] int32. The arguments mean what docs/python.md says of sirdar.attention.

    dropout_rng: [2] int64 on the CPU, seed and offset; drawn from torch's generator when it is None.
    tensors: {name: tensor} that score_mod and mask_mod read; those of fp32 may require a gradient.

    Returns out [batch, seqlen_q, num_heads_q, head_dim_v] in q's dtype, followed by lse (fp32 [batch,
    num_heads_q, seqlen_q]; ragged [num_heads_q, total_q]), a natural logarithm, and max_logit where they
    are asked for. Raises what docs/torch.md lists; what is meant is in docs/semantics.md.
    """
    if (
        bias is mask is alibi is sink is cu_seqlens_q is cu_seqlens_k is seqused_q is seqused_k is None
        and page_table is document_q is document_k is score_mod is mask_mod is tensors is scalars is None
        and window_left is window_right is seqlen_q is seqlen_k is dropout_rng is None
        and return_lse is return_max_logit is False and deterministic is True
        and type(chunk_size) is int and chunk_size == 0 and _is_zero(softcap) and _is_zero(dropout_p)
    ):  # fmt: skip
        out = _short.rows_first(q, k, v, causal, alignment, softmax_scale)
        if out is not None:
            return out
    q, k, v = checked_inputs(q, k, v)
    _check_differentiable(q, k, v, page_table)
    expression = _core.expression(score_mod, mask_mod, tensors, scalars)
    inputs, plain = _prepared(q, k, v, expression, (
        bias, sink, mask, alibi, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, page_table,
        document_q, document_k,
    ))  # fmt: skip
    options = {
        "seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "softmax_scale": softmax_scale, "causal": causal,
        "alignment": alignment, "window_left": window_left, "window_right": window_right,
        "chunk_size": chunk_size, "softcap": softcap, "dropout_p": dropout_p,
        "deterministic": deterministic,
    }  # fmt: skip
    _core.checked(options)
    options["deterministic"] |= torch.are_deterministic_algorithms_enabled()
    return_lse = _core.flag("return_lse", return_lse)
    return_max_logit = _core.flag("return_max_logit", return_max_logit)
    inputs.append(draw_rng(options["dropout_p"], dropout_rng))
    if expression is not _core.NO_EXPRESSION:
        options.update(expression.options())
    if plain and _eager.is_plain():
        out, lse, *rest = _eager.forward(inputs, options, return_lse, return_max_logit)
    else:
        out, lse, *rest = _ops.forward(*inputs, **options, max_logit=return_max_logit)
    if not return_lse and not return_max_logit:
        return out
    return (out,) + (lse,) * return_lse + tuple(rest) * return_max_logit


def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    seqlen_q: int,
    seqlen_k: int,
    **options: Any,
) -> Union[torch.Tensor, Tuple[torch.Tensor, ...]]:
    """attention() of sequences that lie end to end: q [total_q, num_heads_q, head_dim], sequence b in
    rows cu_seqlens_q[b] to cu_seqlens_q[b + 1]; no length exceeds seqlen_q. K and V likewise. Returns and raises
    as attention()."""
    return attention(
        q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        seqlen_q=seqlen_q, seqlen_k=seqlen_k, **options,
    )  # fmt: skip


_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(attention).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and not name.startswith("return_")
}


def backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    dlse: Optional[torch.Tensor] = None,
    **options: Any,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The backward pass by itself, for those who keep out and lse: dq, dk, dv of a call of attention()
    with the same options. out and lse are honoured: they may belong to a larger problem, of which
    these keys are a part (ring attention). With dropout pass the dropout_rng of the forward pass. Raises what
    docs/torch.md lists.
    """
    for name in options:
        if name not in _DEFAULTS:
            raise TypeError(f"{_problem.shortened(name)}: backward has no such argument; it takes those of attention.")
    q, k, v = checked_inputs(q, k, v)
    for name, tensor in (("dout", dout), ("out", out), ("lse", lse)):
        check_tensor(name, tensor, q.device)
    given = _DEFAULTS | options
    given["dropout_p"] = _core.real("dropout_p", given["dropout_p"])
    if type(given["dropout_p"]) not in (int, float):
        given["dropout_p"] = _problem.switch("dropout_p", given["dropout_p"])
    if given["dropout_p"] and given["dropout_rng"] is None:
        raise ValueError(
            "dropout_rng: is None and dropout_p is not 0; pass the forward pass's seed and offset."
        )
    expression = _core.expression(
        *(given.pop(n) for n in ("score_mod", "mask_mod", "tensors", "scalars"))
    )
    inputs, plain = _prepared(q, k, v, expression, [given.pop(name) for name in _core.INPUTS])
    inputs.append(draw_rng(given["dropout_p"], given.pop("dropout_rng")))
    _core.checked(given)
    is_recorded = torch.is_grad_enabled() and any(t.requires_grad for t in (dout, q, k, v, out, lse))
    # What is recorded refuses to be differentiated again.
    run = _core.backward if plain and _eager.is_plain() and not is_recorded else _ops.backward
    return tuple(run(dout, dlse, out, lse, *inputs, **given, **expression.options()))
