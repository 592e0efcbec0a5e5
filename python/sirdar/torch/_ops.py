"""torch.ops.sirdar.forward and .backward: the library's two passes as torch operators.

Both have fake kernels (shapes without data), an autograd formula and a vmap rule (_vmap.py), so that
torch.compile, export and dispatch modes see ordinary operators. Plain eager calls take the shorter way
of _eager.py. The functions users call, with checks and defaults, are in sirdar.torch.

Tensors are dense [batch, seqlen, heads, dim] or, with cu_seqlens, ragged [total, heads, dim].
"""

import torch

from . import _core

# What both passes read. `rng` is [2] int64 on the CPU: seed and offset of dropout. A window side
# that is None is not bounded. `names`, separated by commas, belong to `tensors`, `scalar_names` to
# `scalars`; needs_dtensors holds places in `tensors`.
_INPUTS = (
    "Tensor? bias, Tensor? sink, Tensor[] tensors, Tensor? mask, Tensor? alibi, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqused_q, Tensor? seqused_k, "
    "Tensor? page_table, Tensor? document_q, Tensor? document_k, Tensor? rng"
)
_OPTIONS = (
    "SymInt? seqlen_q=None, SymInt? seqlen_k=None, float? softmax_scale=None, bool causal=False, "
    "str alignment='bottom_right', SymInt? window_left=None, SymInt? window_right=None, "
    "SymInt chunk_size=0, float softcap=0.0, float dropout_p=0.0, str score_mod='', str mask_mod='', "
    "str names='', str scalar_names='', float[] scalars=[], bool deterministic=True"
)
NUM_OTHERS = 10  # inputs after tensors, none of which has a gradient

library = torch.library.Library("sirdar", "DEF")
library.define(
    f"forward(Tensor q, Tensor k, Tensor v, {_INPUTS}, *, {_OPTIONS}, bool max_logit=False) -> "
    "(Tensor out, Tensor lse, Tensor max_logit)"
)
# Gives dq, dk, dv, then fp32 gradients of bias, sink and tensors where needs_* asks for them.
library.define(
    "backward(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, "
    f"{_INPUTS}, *, {_OPTIONS}, bool needs_dbias=False, bool needs_dsink=False, "
    "int[] needs_dtensors=[]) -> Tensor[]"
)
forward = torch.ops.sirdar.forward.default
backward = torch.ops.sirdar.backward.default


def _forward(q, k, v, *inputs, max_logit=False, **options):
    results = _core.forward(q, k, v, *inputs, max_logit=max_logit, **options)
    return results if max_logit else (*results, results[1].new_empty((0,)))


library.impl("forward", _forward, "CompositeExplicitAutograd")
library.impl("backward", _core.backward, "CompositeExplicitAutograd")


def _lse_shape(q):
    """[batch, num_heads_q, seqlen_q], ragged [num_heads_q, total_q]."""
    return (q.shape[0], q.shape[2], q.shape[1]) if q.dim() == 4 else (q.shape[1], q.shape[0])


@torch.library.register_fake("sirdar::forward", lib=library)
def _(q, k, v, *inputs, max_logit=False, **options):
    out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=_core.output_dtype(q.dtype))
    lse = q.new_empty(_lse_shape(q), dtype=torch.float32)
    return out, lse, torch.empty_like(lse) if max_logit else lse.new_empty((0,))


@torch.library.register_fake("sirdar::backward", lib=library)
def _(
    dout, dlse, out, lse, q, k, v, bias, sink, tensors, *inputs,
    needs_dbias=False, needs_dsink=False, needs_dtensors=(), **options,
):  # fmt: skip
    grads = [tensor.new_empty(tensor.shape) for tensor in (q, k, v)]
    fp32 = [bias] * needs_dbias + [sink] * needs_dsink + [tensors[i] for i in needs_dtensors]
    return grads + [tensor.new_empty(tensor.shape, dtype=torch.float32) for tensor in fp32]


def refuse_batches(*grads):
    """Of torch.autograd's own vmap, which sees no operators with rules of torch.func."""
    if any(grad is not None and torch._C._functorch.is_legacy_batchedtensor(grad) for grad in grads):
        raise NotImplementedError(
            "sirdar: a batch of gradients came in (is_grads_batched=True, vectorize=True), and attention takes one at a "
            "time; use torch.func.vmap over torch.func.vjp, or a loop."
        )


def gradients(run, saved, options, needs, dout, dlse):
    """Gradients of q, k, v, bias, sink and a list of those of tensors, by a backward pass `run`.

    saved: out, lse, q, k, v, bias, sink, the others, then the tensors; needs: of bias, sink, and of each
    of the tensors.
    """
    out, lse, q, k, v, bias, sink, *rest = saved
    others, tensors = rest[:NUM_OTHERS], rest[NUM_OTHERS:]
    needs_dbias, needs_dsink, needs_dtensors = needs
    if not torch.compiler.is_compiling():
        refuse_batches(dout, dlse)
    if dout is None and dlse is None:
        return (None,) * 5 + ([None] * len(tensors),)
    wanted = [i for i in range(len(tensors)) if needs_dtensors[i]]
    grads = iter(
        run(
            torch.zeros_like(out) if dout is None else dout, dlse, out, lse, q, k, v, bias, sink,
            tensors, *others, **options, needs_dbias=needs_dbias, needs_dsink=needs_dsink,
            needs_dtensors=wanted,
        )
    )  # fmt: skip
    dqkv = [next(grads) for _ in range(3)]
    dbias = next(grads).to(bias.dtype) if needs_dbias else None
    dsink = next(grads).to(sink.dtype) if needs_dsink else None
    return *dqkv, dbias, dsink, [next(grads) if i in wanted else None for i in range(len(tensors))]


def _save(ctx, inputs, keyword_only_inputs, output):
    out, lse, max_logit = output
    q, k, v, bias, sink, tensors, *others = inputs
    ctx.save_for_backward(out, lse, q, k, v, bias, sink, *others, *tensors)
    ctx.options = {
        name: value for name, value in keyword_only_inputs.items() if name != "max_logit"
    }
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(max_logit)


def _differentiate(ctx, dout, dlse, _):
    needs = ctx.needs_input_grad[3:6]
    made = gradients(backward, ctx.saved_tensors, ctx.options, needs, dout, dlse)
    return *made, *(None,) * NUM_OTHERS


def refuse_second(ctx, *grads):
    raise NotImplementedError(
        "sirdar: a second derivative was asked for (create_graph=True, or a gradient of a gradient), "
        "and attention has first derivatives only; compute this part with "
        "torch.nn.functional.scaled_dot_product_attention and its math backend."
    )


torch.library.register_autograd("sirdar::forward", _differentiate, setup_context=_save, lib=library)
torch.library.register_autograd("sirdar::backward", refuse_second, lib=library)
