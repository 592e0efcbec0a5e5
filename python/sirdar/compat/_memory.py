"""Tensors that are written to: each element must have a place of its own, and all of them are asked before the first
is written."""

import functools

import torch

from ..torch._attention import PLAIN_TYPES, check_memory, check_tensor
from ._common import is_traced

_MOST_STEPS = 4096  # layouts that need more are taken for good


def _terms(shapes, strides):
    """Offsets of elements as sums of stride * x, lowest <= x <= highest, strides falling; the second tensor's count
    down."""
    ranges = {}
    for sign, shape, stride in zip((1, -1), shapes, strides):
        for size, step in zip(shape, stride):
            if size > 1:
                lowest, highest = ranges.get(step, (0, 0))
                ranges[step] = (lowest, highest + size - 1) if sign > 0 else (lowest - size + 1, highest)
    return [(step, *ranges[step]) for step in sorted(ranges, reverse=True)]


def _reaches(terms, target):
    """Whether some x have the sum target."""
    steps = 0

    def search(at, target):
        nonlocal steps
        steps += 1
        if at == len(terms) or steps > _MOST_STEPS:
            return target == 0 and steps <= _MOST_STEPS
        step, lowest, highest = terms[at]
        if step == 0:
            return search(at + 1, target)
        least = sum(step * low for step, low, _ in terms[at + 1 :])
        most = sum(step * high for step, _, high in terms[at + 1 :])
        first, last = max(lowest, -((most - target) // step)), min(highest, (target - least) // step)
        return any(search(at + 1, target - step * x) for x in range(first, last + 1))

    return search(0, target)


@functools.lru_cache(1024)
def _is_folded(shape, stride):
    """Whether two elements of a tensor lie in one place."""
    if 0 in shape:
        return False
    terms = [(step, size) for step, size in zip(stride, shape) if size > 1]
    terms.sort(reverse=True)
    if any(step == 0 for step, _ in terms):
        return True
    for at, (step, size) in enumerate(terms):  # the first axis in which they differ
        rest = [(step, 1 - size, size - 1) for step, size in terms[at + 1 :]]
        if _reaches([(step, 1, size - 1), *rest], 0):
            return True
    return False


@functools.lru_cache(1024)
def _meet(shapes, strides, itemsizes, apart):
    """Whether two tensors, of which the second begins `apart` bytes after the first, have a byte in common."""
    if any(0 in shape for shape in shapes):
        return False
    shapes = [(*shape, itemsize) for shape, itemsize in zip(shapes, itemsizes)]
    strides = [(*(step * itemsize for step in stride), 1) for stride, itemsize in zip(strides, itemsizes)]
    return _reaches(_terms(shapes, strides), apart)


@functools.lru_cache(1024)
def _reach(shape, stride, itemsize):
    """Bytes from a tensor's first to behind its last."""
    return 0 if 0 in shape else itemsize * (1 + sum((size - 1) * step for size, step in zip(shape, stride)))


def _share(one, other):
    """Whether two tensors have memory in common."""
    apart = other.data_ptr() - one.data_ptr()
    if apart >= _reach(one.shape, one.stride(), one.itemsize) or -apart >= _reach(other.shape, other.stride(), other.itemsize):
        return False
    return one.device == other.device and _meet((one.shape, other.shape), (one.stride(), other.stride()), (one.itemsize, other.itemsize), apart)


def check_written(tensors):
    """{name: tensor or None}: ValueError for what cannot be written to, each beside the others."""
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if is_traced() or any(type(tensor) not in PLAIN_TYPES for tensor in given.values()):
        return
    for name, tensor in given.items():
        check_memory(name, tensor)
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            raise ValueError(
                f"{name}: was made under torch.inference_mode() and can be written to there alone; pass a clone, or "
                "call there."
            )
        if _is_folded(tensor.shape, tensor.stride()):
            raise ValueError(f"{name}: is expanded, several elements lie in one place; pass a copy to write to.")
    names = list(given)
    for at, name in enumerate(names):
        for earlier in names[:at]:
            if _share(given[earlier], given[name]):
                raise ValueError(
                    f"{name}: lies where {earlier} does, at least in part, and both are written to; pass another tensor."
                )


def apart_from(new, tensors):
    """new, as a copy where it lies in the storage of one of the tensors, which are written to before it is read."""
    if is_traced() or type(new) not in PLAIN_TYPES:
        return new
    at = new.untyped_storage().data_ptr()
    return new.clone() if any(at == tensor.untyped_storage().data_ptr() for tensor in tensors) else new


def check_gradients(grads, inputs):
    """dq, dk and dv, tensors to be written into or None, beside q, k and v; before anything is written."""
    for name, tensor, grad in zip("qkv", inputs, grads):
        check_tensor(name, tensor)
        if grad is None:
            continue
        check_tensor(f"d{name}", grad, tensor.device, name)
        if grad.shape != tensor.shape or not grad.is_floating_point():
            raise ValueError(
                f"d{name}: is {grad.dtype} of shape {tuple(grad.shape)}; a floating one of {name}'s shape "
                f"{tuple(tensor.shape)} is needed."
            )
    check_written(dict(zip(("dq", "dk", "dv"), grads)))


def check_out(out, q, v):
    """A tensor to be written into, or None; before anything is."""
    if out is None:
        return
    check_tensor("q", q)
    check_tensor("v", v)
    check_tensor("out", out, q.device)
    wanted = (*q.shape[:-1], *v.shape[-1:])
    if tuple(out.shape) != wanted or not out.is_floating_point():
        raise ValueError(
            f"out: is {out.dtype} of shape {tuple(out.shape)}; a floating one of shape {wanted} is needed."
        )
    check_written({"out": out})
