"""Eager calls, and those under torch.func: autograd functions around the library without operators.

An operator with a list of tensors costs hundreds of microseconds of Python in torch; this way costs a
tenth. torch.func can differentiate these functions, which it cannot do with operators.
"""

import torch

from . import _core, _ops, _vmap

NUM_FIXED = 5 + _ops.NUM_OTHERS  # q, k, v, bias, sink and the others


def is_plain():
    """No tracer and no dispatch mode wants to see operators."""
    return not torch.compiler.is_compiling() and is_unseen()


def is_unseen():
    """The same where nothing is compiled: torch.jit.trace and the modes, of which that of make_fx and others of torch's
    own are missed by a plan's guards."""
    return not torch._C._len_torch_dispatch_stack() and torch._C._get_tracing_state() is None


def is_transformed():
    """torch.func is at work, at any level."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_mapped():
    """torch.func.vmap is at work, at any level."""
    if torch.compiler.is_compiling() or not is_transformed():
        return False
    kinds = [level.key() for level in torch._C._functorch.get_interpreter_stack()]
    return torch._C._functorch.TransformType.Vmap in kinds


def _inputs(fixed, tensors):
    """q, k, v, bias, sink, tensors, others."""
    return (*fixed[:5], tensors, *fixed[5:])


def _compute(options, max_logit, *flat):
    inputs = _inputs(flat[:NUM_FIXED], flat[NUM_FIXED:])
    return _core.forward(*inputs, max_logit=max_logit, **options)


def _save(ctx, inputs, output):
    """For _TransformedForward, with _differentiate."""
    ctx.options, _, *flat = inputs
    ctx.save_for_backward(*output[:2], *flat)
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[2:])


def _differentiate(ctx, dout, dlse, *_):
    _, _, _, _, _, *needs = ctx.needs_input_grad
    needs = (*needs[:2], needs[2 + _ops.NUM_OTHERS :])
    run = _core.backward
    if torch.is_grad_enabled() or not is_plain():
        run = _Backward.run if is_transformed() else _ops.backward
    *made, dtensors = _ops.gradients(run, ctx.saved_tensors, ctx.options, needs, dout, dlse)
    return None, None, *made, *(None,) * _ops.NUM_OTHERS, *dtensors


class _Forward(torch.autograd.Function):
    """apply(options, max_logit, others, q, k, v, bias, sink, *tensors) -> out, lse[, max_logit]

    Torch spends time on every argument, so those that never have a gradient come as one."""

    @staticmethod
    def forward(ctx, options, max_logit, others, *inputs):
        output = _core.forward(*inputs[:5], inputs[5:], *others, max_logit=max_logit, **options)
        ctx.options = options
        ctx.save_for_backward(*output[:2], *inputs[:5], *others, *inputs[5:])
        ctx.set_materialize_grads(False)
        if max_logit:
            ctx.mark_non_differentiable(output[2])
        return output

    @staticmethod
    def backward(ctx, dout, dlse, *_):
        needs = ctx.needs_input_grad
        needs = (*needs[6:8], needs[8:])
        run = _core.backward
        if torch.is_grad_enabled() or not is_plain():
            run = _ops.backward
        *made, dtensors = _ops.gradients(run, ctx.saved_tensors, ctx.options, needs, dout, dlse)
        return None, None, None, *made, *dtensors


def _refuse_tangents(ctx, *tangents):
    """As a Hessian by forward over reverse asks."""
    raise NotImplementedError(
        "sirdar: forward-mode differentiation (jvp, jacfwd, hessian) was asked for, and attention has reverse "
        "mode and first derivatives only; compute this part with "
        "torch.nn.functional.scaled_dot_product_attention and its math backend."
    )


class _TransformedForward(torch.autograd.Function):
    """The same under torch.func, which wants it in this form; torch inspects the signature every time,
    which costs more than all the rest."""

    forward = staticmethod(_compute)
    setup_context = staticmethod(_save)
    backward = staticmethod(_differentiate)
    jvp = staticmethod(_refuse_tangents)

    @staticmethod
    def vmap(info, in_dims, options, max_logit, *flat):
        def call(*inputs, max_logit=False, **options):
            fixed, tensors = (*inputs[:5], *inputs[6:]), inputs[5]
            return _TransformedForward.apply(options, max_logit, *fixed, *tensors)

        dims = in_dims[2:]
        inputs = _inputs(flat[:NUM_FIXED], flat[NUM_FIXED:])
        dims = _inputs(dims[:NUM_FIXED], dims[NUM_FIXED:])
        return _vmap.forward(call, info.batch_size, dims, inputs, max_logit, options)


class _Backward(torch.autograd.Function):
    """The backward pass under torch.func, which wraps what it sees even where nobody differentiates."""

    @staticmethod
    def run(*inputs, **options):
        tensors, fixed = inputs[9], (*inputs[:9], *inputs[10:])
        return _Backward.apply(options, *fixed, *tensors)

    @staticmethod
    def forward(options, *flat):
        fixed, tensors = flat[: NUM_FIXED + 4], flat[NUM_FIXED + 4 :]
        return tuple(_core.backward(*fixed[:9], tensors, *fixed[9:], **options))

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    backward = staticmethod(_ops.refuse_second)
    jvp = staticmethod(_refuse_tangents)

    @staticmethod
    def vmap(info, in_dims, options, *flat):
        def split(flat):
            fixed, tensors = flat[: NUM_FIXED + 4], flat[NUM_FIXED + 4 :]
            return (*fixed[:9], tensors, *fixed[9:])

        grads, dims = _vmap.backward(
            _Backward.run, info.batch_size, split(in_dims[1:]), split(flat), options
        )
        return tuple(grads), tuple(dims)


def _wants_gradient(inputs):
    if not torch.is_grad_enabled():
        return False
    return any(tensor is not None and tensor.requires_grad for tensor in (*inputs[:5], *inputs[5]))


def forward(inputs, options, lse, max_logit):
    """(out, lse, ...) of plain tensors; lse is None where it is neither wanted nor needed for gradients.
    inputs: q, k, v, bias, sink, tensors, others."""
    if is_transformed():
        function = _TransformedForward
    elif _wants_gradient(inputs):
        function = _Forward
    elif lse or max_logit:
        return _core.forward(*inputs, max_logit=max_logit, **options)
    else:
        return _core.forward(*inputs, lse=False, **options), None
    if function is _Forward:
        return _Forward.apply(options, max_logit, inputs[6:], *inputs[:5], *inputs[5])
    return function.apply(options, max_logit, *inputs[:5], *inputs[6:], *inputs[5])
