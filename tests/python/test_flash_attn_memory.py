"""Tensors that the flash-attn interfaces write to: refused where they cannot be written to, before any of them is, and
only there."""

import itertools
import random

import pytest
import torch

from sirdar.compat import _memory, flash_attn, flash_attn_2_cuda, flash_attn_interface as fa3
from sirdar.compat.flash_attn import flash_attn_interface as fa2

SHAPE = (2, 12, 2, 16)


def made_under_inference_mode():
    with torch.inference_mode():
        return torch.zeros(SHAPE)


def without_memory():
    tensor = torch.zeros(SHAPE)
    tensor.untyped_storage().resize_(0)
    return tensor


ALONE = {
    "inference": (made_under_inference_mode, "was made under torch.inference_mode"),
    "expanded": (lambda: torch.zeros(1).expand(SHAPE), "is expanded"),
    "folded rows": (lambda: torch.zeros(600).as_strided(SHAPE, (16, 32, 16, 1)), "is expanded"),
    "folded heads": (lambda: torch.zeros(800).as_strided(SHAPE, (384, 32, 8, 1)), "is expanded"),
    "gone": (without_memory, "its memory was given back"),
}


def shifted():
    memory = torch.zeros(25, 2, 16)
    return memory[:24].view(SHAPE), memory[1:].view(SHAPE)


def shifted_of_numpy():
    memory = torch.zeros(800).numpy()
    return torch.from_numpy(memory[:768]).view(SHAPE), torch.from_numpy(memory[8:776]).view(SHAPE)


def crossing():
    memory = torch.zeros(2, 12, 3, 16)
    return memory[:, :, :2], memory[:, :, 1:]


def same():
    memory = torch.zeros(SHAPE)
    return memory, memory.view(SHAPE)


SHARED = {"shifted": shifted, "of NumPy": shifted_of_numpy, "crossing": crossing, "same": same}
APART = {
    "heads": lambda: torch.zeros(2, 12, 2, 2, 16).unbind(2),
    "rows": lambda: torch.zeros(2, 2, 12, 2, 16).unbind(1),
    "columns": lambda: torch.zeros(2, 12, 2, 32).split(16, 3),
    "single columns": lambda: torch.zeros(2, 12, 2, 16, 2).unbind(4),
    "behind": lambda: torch.zeros(2, 2, 12, 2, 16).unbind(0),
}


def decode(k_cache, v_cache):
    new = torch.ones(2, 2, 2, 16)
    lengths = torch.tensor([5, 7], dtype=torch.int32)
    flash_attn.flash_attn_with_kvcache(new, k_cache, v_cache, new, 2 * new, cache_seqlens=lengths, causal=True)


X = [torch.randn(SHAPE) for _ in range(4)]
OUT, LSE, _ = fa2.flash_attn_func(*X[:3], softmax_scale=0.25, return_attn_probs=True)


def backward_2(dk, dv):
    fa2._flash_attn_backward(X[3], *X[:3], OUT, LSE, torch.zeros(SHAPE), dk, dv, 0.0, 0.25, False)


def backward_3(dk, dv):
    fa3._flash_attn_backward(X[3], *X[:3], OUT, LSE, dq=dk, dv=dv, softmax_scale=0.25)


def module(dk, dv):
    flash_attn_2_cuda.bwd(X[3], *X[:3], OUT, LSE, None, dk, dv, None, 0.0, 0.25, False, -1, -1, 0.0, False)


CALLS = {"k_cache v_cache": decode, "dk dv": backward_2, "dq dv": backward_3, "dk dv of the module": module}


@pytest.mark.parametrize("names, call", CALLS.items(), ids=CALLS)
@pytest.mark.parametrize("make, said", ALONE.values(), ids=ALONE)
def test_what_cannot_be_written_to(names, call, make, said):
    for at, name in enumerate(names.split()[:2]):
        given = [torch.zeros(SHAPE), torch.zeros(SHAPE)]
        given[at] = make()
        with pytest.raises(ValueError, match=f"^{name}: {said}.*\\.$"):
            call(*given)
        assert given[1 - at].eq(0).all()
    if said.startswith("was made"):
        with torch.inference_mode():
            call(make(), make())


@pytest.mark.parametrize("names, call", CALLS.items(), ids=CALLS)
@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
def test_memory_that_two_share(names, call, make):
    first, second = names.split()[:2]
    for one, other in (make(), make()[::-1]):
        with pytest.raises(ValueError, match=f"^{second}: lies where {first} does"):
            call(one, other)
        assert one.eq(0).all() and other.eq(0).all()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("make", APART.values(), ids=APART)
def test_memory_that_is_near(call, make):
    wanted = torch.zeros(SHAPE), torch.zeros(SHAPE)
    call(*wanted)
    found = make()
    call(*found)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted))


@pytest.mark.parametrize("make, said", ALONE.values(), ids=ALONE)
def test_an_output_that_cannot_be_written_to(make, said):
    with pytest.raises(ValueError, match=f"^out: {said}"):
        flash_attn_2_cuda.fwd(*X[:3], make(), None, 0.0, 0.25, False, -1, -1, 0.0, False)


@pytest.mark.parametrize("make, said", ALONE.values(), ids=ALONE)
def test_parts_that_are_combined(make, said):
    parts, lse = torch.ones(3, *SHAPE), torch.ones(3, *SHAPE[:3])
    with pytest.raises(ValueError, match=f"^out: {said}"):
        fa3.flash_attn_combine(parts, lse, out=make())
    for name, tensor in (("out_partial", parts), ("lse_partial", lse)):
        gone = tensor.clone()
        gone.untyped_storage().resize_(0)
        with pytest.raises(ValueError, match=f"^{name}: its memory was given back"):
            fa3.flash_attn_combine(**{"out_partial": parts, "lse_partial": lse, name: gone})


def test_new_keys_that_lie_in_a_cache():
    for at in (0, 1):
        caches, wanted = [torch.randn(SHAPE) for _ in range(2)], []
        wanted = [cache.clone() for cache in caches]
        new = caches[at][:, 4:6]  # rows that are written to
        lengths = torch.tensor([5, 4], dtype=torch.int32)
        copy = new.clone()
        fa2.flash_attn_with_kvcache(new, *caches, new, new, cache_seqlens=lengths)
        fa2.flash_attn_with_kvcache(copy, *wanted, copy, copy, cache_seqlens=lengths)
        assert all(torch.equal(one, other) for one, other in zip(caches, wanted))


def places(shape, stride, itemsize, first):
    return {
        first + itemsize * sum(i * step for i, step in zip(index, stride)) + byte
        for index in itertools.product(*map(range, shape)) for byte in range(itemsize)
    }  # fmt: skip


def test_layouts_by_counting():
    rng = random.Random(3)
    for _ in range(2000):
        shapes, strides, sizes = [], [], []
        for _ in range(2):
            rank = rng.randint(1, 3)
            shapes.append(tuple(rng.choice((0, 1, 2, 2, 3, 4)) for _ in range(rank)))
            strides.append(tuple(rng.choice((0, 1, 2, 3, 4, 6, 8, 12)) for _ in range(rank)))
            sizes.append(rng.choice((1, 2, 4)))
        if rng.random() < 0.5:
            strides[1] = strides[0] = max(strides, key=len)
            shapes = [(shape + (2, 3, 2))[: len(strides[0])] for shape in shapes]
        apart = rng.randint(-40, 40)
        one, other = places(shapes[0], strides[0], sizes[0], 0), places(shapes[1], strides[1], sizes[1], apart)
        assert _memory._meet(tuple(shapes), tuple(strides), tuple(sizes), apart) == bool(one & other)
        count = torch.Size(shapes[0]).numel()
        assert _memory._is_folded(shapes[0], strides[0]) == (len(places(shapes[0], strides[0], 1, 0)) < count)
