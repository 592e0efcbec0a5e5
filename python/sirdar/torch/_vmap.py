"""torch.func.vmap over sirdar's operators: the mapped axis becomes a part of the batch.

That is exact for dense problems whose meaning does not depend on the number of a sequence; the
others (ragged and paged batches, expressions, dropout, a mapped sink) are refused by name.
"""

import torch

from . import _ops

# Inputs of sirdar::forward from bias on, as _ops lists them.
_NAMES = (
    "bias", "sink", "tensors", "mask", "alibi", "cu_seqlens_q", "cu_seqlens_k",
    "seqused_q", "seqused_k", "page_table", "document_q", "document_k", "rng",
)  # fmt: skip
_REFUSED = ("tensors", "cu_seqlens_q", "cu_seqlens_k", "page_table", "rng")


def _check(values, dims, options):
    for name in _REFUSED:
        if values[name] is not None and (name != "tensors" or values[name]):
            said = "dropout_p" if name == "rng" else name
            raise NotImplementedError(
                f"{said}: torch.func.vmap over attention does not take it; loop over the mapped axis, "
                "or make it a part of the batch yourself."
            )
    if options.get("score_mod") or options.get("mask_mod"):
        raise NotImplementedError(
            "score_mod, mask_mod: torch.func.vmap over attention does not take expressions, which may "
            "read the number of a sequence; make the mapped axis a part of the batch yourself."
        )
    if dims["sink"] is not None:
        raise NotImplementedError(
            "sink: torch.func.vmap over attention takes one sink for all; loop over the mapped axis."
        )


def _front(tensor, dim, size):
    """The mapped axis first, made by broadcasting where the tensor is not mapped."""
    return tensor.movedim(dim, 0) if dim is not None else tensor.expand(size, *tensor.shape)


def _fold(tensor, dim, size):
    return _front(tensor, dim, size).flatten(0, 1)


def _fold_broadcast(tensor, dim, size, batch, needed=False):
    """A tensor whose batch axis may be 1: that stays a broadcast where nothing is mapped."""
    if tensor is None or (dim is None and tensor.shape[0] == 1 and not needed):
        return tensor
    front = _front(tensor, dim, size)
    return front.expand(size, batch, *front.shape[2:]).flatten(0, 1)


def _fold_inputs(size, batch, values, dims, needs_dbias=False):
    folded = dict(values)
    for name in ("mask", "document_q", "document_k"):
        folded[name] = _fold_broadcast(values[name], dims[name], size, batch)
    folded["bias"] = _fold_broadcast(values["bias"], dims["bias"], size, batch, needs_dbias)
    alibi = values["alibi"]
    if alibi is not None and (dims["alibi"] is not None or alibi.dim() == 2):
        front = _front(alibi, dims["alibi"], size)
        front = front.unsqueeze(1) if front.dim() == 2 else front  # [mapped, batch|1, num_heads_q]
        folded["alibi"] = front.expand(size, batch, front.shape[-1]).flatten(0, 1)
    for name in ("seqused_q", "seqused_k"):
        if values[name] is not None:
            folded[name] = _fold(values[name], dims[name], size)
    return [folded[name] for name in _NAMES]


def _batch_of(q, dim):
    shape = list(q.shape)
    if dim is not None:
        del shape[dim]
    return shape[0]


def forward(call, size, dims, inputs, max_logit, options):
    """call(...) on the folded inputs; its results with the mapped axis in front, and their axes.
    inputs: q, k, v, bias, sink, tensors, others; dims: the mapped axis of each, or None."""
    values, places = dict(zip(_NAMES, inputs[3:])), dict(zip(_NAMES, dims[3:]))
    _check(values, places, options)
    batch = _batch_of(inputs[0], dims[0])
    folded = [_fold(tensor, dim, size) for tensor, dim in zip(inputs[:3], dims)]
    results = call(
        *folded, *_fold_inputs(size, batch, values, places), max_logit=max_logit, **options
    )
    mapped = 3 if max_logit else 2
    parts = [result.unflatten(0, (size, batch)) for result in results[:mapped]]
    return (*parts, *results[mapped:]), (0,) * mapped + (None,) * (len(results) - mapped)


def backward(call, size, dims, inputs, options):
    """As forward; inputs: dout, dlse, out, lse, then those of forward."""
    values, places = dict(zip(_NAMES, inputs[7:])), dict(zip(_NAMES, dims[7:]))
    _check(values, places, options)
    if options.get("needs_dsink"):
        raise NotImplementedError(
            "sink: torch.func.vmap cannot take its gradient; loop over the mapped axis."
        )
    batch, needs_dbias = _batch_of(inputs[4], dims[4]), options.get("needs_dbias", False)
    folded = [None if t is None else _fold(t, dim, size) for t, dim in zip(inputs[:7], dims)]
    grads = list(call(*folded, *_fold_inputs(size, batch, values, places, needs_dbias), **options))
    grads = [grad.unflatten(0, (size, batch)) for grad in grads]
    if needs_dbias and _batch_of(values["bias"], places["bias"]) == 1:
        grads[3] = grads[3].sum(1, keepdim=True)
    return grads, [0] * len(grads)


@torch.library.register_vmap("sirdar::forward", lib=_ops.library)
def _(info, in_dims, *inputs, max_logit=False, **options):
    return forward(_ops.forward, info.batch_size, in_dims, inputs, max_logit, options)


@torch.library.register_vmap("sirdar::backward", lib=_ops.library)
def _(info, in_dims, *inputs, **options):
    return backward(_ops.backward, info.batch_size, in_dims, inputs, options)
