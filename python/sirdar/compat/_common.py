"""What the flash-attn interfaces share: their conventions turned into arguments of sirdar.torch."""

import torch

from .. import _problem
from ..torch import _core, _eager
from ..torch._attention import PLAIN_TYPES, check_memory, check_tensor


def refuse(name, instead):
    """An argument of the other library that this one does not compute."""
    raise NotImplementedError(f"{name}: is not supported by this library; {instead}")


def maybe_contiguous(x):
    """x with a last axis of stride 1; None stays None. Helper of both interfaces that others import."""
    return x.contiguous() if x is not None and x.stride(-1) != 1 else x


def round_multiple(x, m):
    """x rounded up to a multiple of m; a helper that others import."""
    return -(-x // m) * m


def check_hints(num_splits=0, pack_gqa=None, sm_margin=0):
    """What says how and not what has no effect, but must be what it can be. num_splits below 1 leaves the choice
    to the kernel there too."""
    _problem.integer("num_splits", num_splits)
    _problem.count("sm_margin", sm_margin)
    if pack_gqa is not None:
        _core.flag("pack_gqa", pack_gqa)


def wants_gradient(tensors):
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


class NoBackward(torch.autograd.Function):
    """apply(sentence, out, lse, *inputs) -> out, lse: results of inputs that require gradients which there are
    not; the sentence is raised only where they are asked for, as flash-attn's users expect."""

    @staticmethod
    def forward(ctx, sentence, out, lse, *inputs):
        ctx.sentence = sentence
        ctx.mark_non_differentiable(lse)
        return out.view_as(out), lse

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError(ctx.sentence)


def window_of(window_size):
    """The options of a window given as a pair of ints, a list or a tensor; a negative side has no bound."""
    try:
        left, right = (_problem.integer("window_size", side) for side in window_size)
    except (TypeError, ValueError, RuntimeError):  # the last of tensors without data
        raise ValueError(
            f"window_size: is {_problem.said(window_size)}; two whole numbers (left, right) are needed, -1 for a side "
            "without a bound."
        ) from None
    return {"window_left": None if left < 0 else left, "window_right": None if right < 0 else right}


def whole(name, length):
    """A length given as an int or as a tensor of one; None where it is not given."""
    return None if length is None else _core.count(name, length)


def real_or_none(name, value):
    return None if value is None else _core.real(name, value)


def check_packed(name, tensor, axis, count, shape):
    if isinstance(tensor, torch.Tensor):
        check_tensor(name, tensor)
    if not isinstance(tensor, torch.Tensor) or tensor.dim() <= -axis or tensor.shape[axis] != count:
        given = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise ValueError(f"{name}: is {given}; {shape} is needed.")


def written(out, result):
    """result, in out where that is given."""
    return result if out is None else out.copy_(result)


def lse_product(dout, out):
    """The rows' dot products of dout and out, fp32 [batch, num_heads_q, seqlen_q] (ragged: [num_heads_q,
    total_q]), which FlashAttention's backward hands out as softmax_d."""
    return (dout.float() * out.float()).sum(-1).transpose(-1, -2)


def is_traced():
    """A compiler, a tracer, a dispatch mode or torch.func is at work, for which numbers may not be there yet."""
    return not _eager.is_plain() or _eager.is_transformed()


def is_unread(tensor):
    """Its numbers are not looked at: that would wait for a GPU, and a graph or a fake tensor has none yet."""
    return tensor.is_cuda or is_traced() or type(tensor) not in PLAIN_TYPES


_FEW = 64  # numbers that Python compares faster than torch does


def ends(tensor):
    """The lowest and the highest of whole numbers, of one at least."""
    if tensor.numel() > _FEW:
        lowest, highest = tensor.aminmax()
        return int(lowest), int(highest)
    numbers = tensor.flatten().tolist()
    return min(numbers), max(numbers)


def check_range(name, tensor, count, more=""):
    """ValueError for whole numbers that are not from 0 to count - 1, before they are made int32. A GPU is not asked."""
    if is_unread(tensor) or not tensor.numel():
        return
    lowest, highest = ends(tensor)
    if lowest < 0 or highest >= count:
        raise ValueError(
            f"{name}: holds {lowest if lowest < 0 else highest}; numbers from 0 to {count - 1}{more} are allowed."
        )


def check_starts(name, starts, batch, rows, device, dtypes=(torch.int32,), first="q"):
    """Prefix sums [batch + 1] of the lengths of sequences that lie end to end; gives the longest, 0 where that is not
    known. A GPU is not asked."""
    check_tensor(name, starts, device, first)
    if starts.dtype not in dtypes or starts.dim() != 1 or not len(starts) or batch not in (None, len(starts) - 1):
        wanted = "[batch + 1]" if batch is None else (batch + 1,)
        raise ValueError(
            f"{name}: is {starts.dtype} of shape {tuple(starts.shape)}; torch.int32 of shape {wanted} is needed."
        )
    check_memory(name, starts)
    if is_unread(starts):
        return 0
    numbers = starts.tolist()
    if numbers[0] != 0 or numbers[-1] != rows or sorted(numbers) != numbers:
        raise ValueError(f"{name}: is {_problem.said(numbers)}; it must rise from 0 to the {rows} rows there are.")
    return max((end - start for start, end in zip(numbers, numbers[1:])), default=0)
