"""Arrays of other frameworks, in any strides, and where results go."""

import copy
import ctypes
import pickle
import sys
import types

import numpy as np
import pytest
import sirdar
from sirdar import _functions, _tensor


@pytest.fixture
def qkv(random):
    return random(2, 5, 4, 16), random(2, 7, 2, 16), random(2, 7, 2, 16)


@pytest.fixture
def wanted(qkv):
    return sirdar.attention(*qkv, causal=True)


def strided(array):
    """Variants of an array with the same numbers and other strides."""
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan, array.dtype)
    wide[..., ::2] = array
    yield np.ascontiguousarray(array.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)  # heads outside
    yield np.ascontiguousarray(array[:, ::-1])[:, ::-1]  # a negative stride
    yield wide[..., ::2]  # the last axis strided
    yield np.asfortranarray(array)


def test_strides_do_not_matter(qkv, wanted):
    for variant in zip(*(strided(array) for array in qkv), strict=True):
        np.testing.assert_array_equal(sirdar.attention(*variant, causal=True), wanted)
        plan = sirdar.plan(*variant, causal=True)
        np.testing.assert_array_equal(plan(*variant), wanted)


def test_keys_that_are_broadcast_by_a_stride_of_zero(qkv):
    q, k, v = qkv
    wide = np.broadcast_to(k[:1], k.shape)
    np.testing.assert_array_equal(
        sirdar.attention(q, wide, v), sirdar.attention(q, np.ascontiguousarray(wide), v)
    )


def test_out_and_lse_are_written_where_they_are_given(qkv, wanted):
    out = np.full((2, 4, 5, 16), np.nan, np.float32).transpose(0, 2, 1, 3)
    lse = np.full((2, 4, 5), np.nan, np.float32)
    result = sirdar.attention(*qkv, causal=True, out=out, lse=lse)
    assert result[0] is out and result[1] is lse
    np.testing.assert_array_equal(out, wanted)
    assert np.isfinite(lse).all()
    plan = sirdar.plan(*qkv, causal=True)
    again = np.full_like(wanted, np.nan)
    assert plan(*qkv, out=again) is again
    np.testing.assert_array_equal(again, wanted)


def test_masks_and_biases_of_fewer_axes_are_broadcast(qkv, random):
    bias = random(5, 7)
    full = np.broadcast_to(bias, (2, 4, 5, 7))
    np.testing.assert_array_equal(
        sirdar.attention(*qkv, bias=bias), sirdar.attention(*qkv, bias=full)
    )
    mask = bias > -1
    per_head = np.broadcast_to(mask, (4, 5, 7))
    np.testing.assert_array_equal(
        sirdar.attention(*qkv, mask=mask), sirdar.attention(*qkv, mask=per_head)
    )


def test_half_precision_and_a_wider_output(qkv):
    halves = [array.astype(np.float16) for array in qkv]
    out = sirdar.attention(*halves)
    wide = sirdar.attention(*halves, dtype_out="fp32")
    assert out.dtype == np.float16 and wide.dtype == np.float32
    np.testing.assert_array_equal(wide.astype(np.float16), out)


def test_bf16_of_ml_dtypes(qkv):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    narrow = [array.astype(ml_dtypes.bfloat16) for array in qkv]
    out = sirdar.attention(*narrow)
    assert out.dtype == ml_dtypes.bfloat16
    wide = sirdar.attention(*(array.astype(np.float32) for array in narrow))
    np.testing.assert_allclose(out.astype(np.float32), wide, atol=2e-2)


class OnlyDlpack:
    """An array of a framework that nobody has heard of."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_anything_with_dlpack(qkv, wanted):
    out = sirdar.attention(*map(OnlyDlpack, qkv), causal=True)
    assert type(out) is np.ndarray
    np.testing.assert_array_equal(out, wanted)
    turned = [
        np.ascontiguousarray(array.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for array in qkv
    ]
    np.testing.assert_array_equal(sirdar.attention(*map(OnlyDlpack, turned), causal=True), wanted)


def test_torch_tensors_are_the_same_memory(qkv, wanted):
    torch = pytest.importorskip("torch")
    tensors = [torch.from_numpy(array) for array in qkv]
    out = sirdar.attention(*tensors, causal=True)
    assert isinstance(out, torch.Tensor) and out.dtype == torch.float32
    np.testing.assert_array_equal(out.numpy(), wanted)
    narrow = [tensor.bfloat16() for tensor in tensors]
    assert sirdar.attention(*narrow).dtype == torch.bfloat16
    plan = sirdar.plan(*tensors, causal=True)
    np.testing.assert_array_equal(plan(*tensors).numpy(), wanted)


def test_a_negated_view_of_torch_is_read_with_its_sign(qkv):
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(array) for array in qkv)
    negated = torch.complex(v, -v).conj().imag
    assert negated.is_neg()
    np.testing.assert_array_equal(sirdar.attention(q, k, negated), sirdar.attention(q, k, v))
    plan = sirdar.plan(q, k, negated)
    np.testing.assert_array_equal(plan(q, k, negated), sirdar.attention(q, k, v))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_negative_bit_of_torch_is_read_in_any_layout(qkv, place):
    """Tensors in layouts that were read before without it, through every way down."""
    torch = pytest.importorskip("torch")
    import sirdar.torch

    tensors = [torch.from_numpy(array) for array in qkv]
    plan = sirdar.plan(*tensors, causal=True)
    for _ in range(3):
        plan(*tensors)  # learns the short way
    negated = list(tensors)
    negated[place] = torch._neg_view(tensors[place])
    assert negated[place].is_neg() and negated[place].is_contiguous()
    plain = [tensor.resolve_neg() for tensor in negated]
    wanted = sirdar.attention(*plain, causal=True)
    assert not torch.equal(wanted, plan(*tensors))
    assert torch.equal(plan(*negated), wanted)
    assert torch.equal(plan(*negated, out=torch.empty_like(wanted)), wanted)
    assert torch.equal(sirdar.attention(*negated, causal=True), wanted)
    assert torch.equal(sirdar.torch.attention(*negated, causal=True), wanted)
    heads_first = (tensor.transpose(1, 2) for tensor in negated)
    out = sirdar.torch.scaled_dot_product_attention(*heads_first, enable_gqa=True)
    assert torch.equal(out.transpose(1, 2), sirdar.attention(*plain))
    out, lse = sirdar.attention(*plain, causal=True, return_lse=True)
    dout = torch._neg_view(torch.ones_like(out))
    grads = sirdar.backward(dout, *negated, out, lse, causal=True)
    expected = sirdar.backward(-torch.ones_like(out), *plain, out, lse, causal=True)
    for one, other in zip(grads[:3], expected[:3]):
        assert not one.is_neg() and torch.equal(one, other)


def test_outputs_of_torch_with_the_negative_bit_are_refused(qkv):
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(array) for array in qkv)
    plan = sirdar.plan(q, k, v)
    memory = torch.full_like(plan(q, k, v, out=torch.empty_like(plan(q, k, v))), 7.0)
    out = torch._neg_view(memory)
    for call in (plan, sirdar.attention):
        with pytest.raises(ValueError, match="^out: its negative bit is set.*; pass a plain tensor"):
            call(q, k, v, out=out)
    assert torch.all(memory == 7.0)
    mask = torch._neg_view(torch.ones(1, 1, q.shape[1], k.shape[1], dtype=torch.bool))
    with pytest.raises(NotImplementedError, match="^mask: its negative bit is set"):
        sirdar.attention(q, k, v, mask=mask)


def _strange_places(array):
    """Copies of an array [batch, rows, heads, dim] of one shape in other strides."""
    wide = np.zeros((*array.shape[:3], array.shape[3] + 3), array.dtype)
    wide[..., 2:-1] = array
    turned = np.ascontiguousarray(array.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    last_strided = np.ascontiguousarray(array.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    return [array.copy(), turned, wide[..., 2:-1], last_strided, array[:, ::-1].copy()[:, ::-1]]


def test_a_prepared_plan_reads_what_lies_otherwise_than_last_time(random):
    q, k, v = (random(2, 6, 2, 8) for _ in range(3))
    plan, wanted = sirdar.plan(q, k, v), sirdar.attention(q, k, v)
    for place in range(3):
        for other in _strange_places((q, k, v)[place]):
            arrays = [q, k, v]
            for _ in range(2):
                np.testing.assert_array_equal(plan(q, k, v), wanted)
                arrays[place] = other
                np.testing.assert_array_equal(plan(*arrays), wanted)
                out = np.zeros_like(other)  # in the strides of the other
                if out.strides[-1] == out.itemsize:
                    assert plan(*arrays, out=out) is out
                    np.testing.assert_array_equal(out, wanted)
    out = np.zeros_like(q)
    for _ in range(2):
        plan(q, k, v, out=out)
    out[:], out.flags.writeable = 7, False
    with pytest.raises(ValueError, match="^out: the array is read-only"):
        plan(q, k, v, out=out)
    assert (out == 7).all()
    for bad in (q.astype(np.float16), q[:1], q.astype(">f4"), np.ma.masked_array(q), None, 3, [q]):
        with pytest.raises((TypeError, ValueError), match=r"^[qkv, ]+: [^.]+\.$|^[qk]: .*\.$"):
            plan(bad, k, v)


@pytest.mark.parametrize("has_guards", [True, False])
def test_a_prepared_plan_asks_what_torch_tensors_are(has_guards, random, monkeypatch):
    torch = pytest.importorskip("torch")
    from torch.autograd import forward_ad

    kind = _tensor.kind_of(torch.zeros(1), "q")
    assert kind.guards is not None  # this torch has them
    if not has_guards:
        monkeypatch.setattr(kind, "guards", None)
    q, k, v = arrays = [random(2, 6, 2, 8) for _ in range(3)]
    q, k, v = tensors = [torch.from_numpy(array) for array in arrays]
    plan = sirdar.plan(*tensors)
    wanted = sirdar.attention(*tensors)

    def learn():
        for _ in range(2):
            assert torch.equal(plan(*tensors), wanted)
            assert torch.equal(plan(*tensors, out=torch.empty_like(wanted)), wanted)

    for place in range(3):
        for other in map(torch.from_numpy, _strange_places(arrays[place])[:-1]):
            learn()
            changed = [*tensors]
            changed[place] = other
            assert torch.equal(plan(*changed), wanted) and torch.equal(plan(*changed), wanted)
            assert torch.equal(plan(*changed, out=torch.zeros_like(wanted)), wanted)
    for variant in (torch.nn.Parameter, lambda tensor: tensor.clone().requires_grad_()):
        recorded = [*map(variant, tensors)]
        for _ in range(2):
            learn()
            with pytest.raises(ValueError, match="^q: it requires a gradient"):
                plan(*recorded)
            with torch.no_grad():
                for _ in range(2):
                    assert torch.equal(plan(*recorded), wanted)
                    assert torch.equal(plan(*recorded, out=torch.zeros_like(wanted)), wanted)
            with pytest.raises(ValueError, match="^q: it requires a gradient"):
                plan(*recorded, out=torch.zeros_like(wanted))
    for _ in range(2):
        negated = torch._neg_view(-q)
        assert torch.equal(plan(negated, k, v), wanted) and torch.equal(plan(q, k, v), wanted)
    nested = torch.nested.nested_tensor([*q]), torch.nested.nested_tensor([*q], layout=torch.jagged)
    for bad in (*nested, q.half(), q.to("meta"), q[:1], q.to_sparse(), q.cfloat(), None, 3):
        learn()
        with pytest.raises((AttributeError, NotImplementedError, TypeError, ValueError)):
            plan(*tensors, out=bad if bad is not None else 3)
        with pytest.raises((NotImplementedError, TypeError, ValueError), match=r"^q.*\.$"):
            plan(bad, k, v)
    learn()
    with torch.inference_mode():
        assert torch.equal(plan(q, k, v), wanted) and torch.equal(plan(q.clone(), k, v), wanted)
    with forward_ad.dual_level():
        assert torch.equal(plan(q, k, v), wanted)
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        for call in (plan, sirdar.attention):
            with pytest.raises(NotImplementedError, match="^q: it has a tangent"):
                call(dual, k, v)


def test_arrays_of_jax(qkv, wanted):
    jnp = pytest.importorskip("jax.numpy")
    out = sirdar.attention(*map(jnp.asarray, qkv), causal=True)
    assert isinstance(out, jnp.ndarray)
    np.testing.assert_array_equal(out, wanted)
    narrow = [jnp.asarray(array, jnp.bfloat16) for array in qkv]
    assert sirdar.attention(*narrow).dtype == jnp.bfloat16


def test_arrays_of_two_frameworks_meet_in_that_of_q(qkv, wanted):
    torch = pytest.importorskip("torch")
    q, k, v = qkv
    out = sirdar.attention(torch.from_numpy(q), k, OnlyDlpack(v), causal=True)
    assert isinstance(out, torch.Tensor)
    np.testing.assert_array_equal(out.numpy(), wanted)


def test_subclasses_and_memory_maps(qkv, wanted, tmp_path):
    mapped = []
    for name, array in zip("qkv", qkv, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
        mapped.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    np.testing.assert_array_equal(sirdar.attention(*mapped, causal=True), wanted)


def test_the_address_of_an_array_is_read_right():
    """The short way to it, for arrays of every kind of origin."""
    from sirdar import _tensor

    base = np.arange(64, dtype=np.float32).reshape(4, 16)
    memory = (ctypes.c_float * 8)()
    for array in (base, base[2:, 3:], base[::-1], np.frombuffer(memory, np.float32), base[:0]):
        assert _tensor.read(array, "q")[0] == array.ctypes.data


def test_threads_share_a_plan(random):
    from concurrent.futures import ThreadPoolExecutor

    inputs = [[random(1, 33, 2, 32) for _ in range(3)] for _ in range(8)]
    plan = sirdar.plan(*inputs[0], causal=True, num_threads=1)
    wanted = [sirdar.attention(*one, causal=True) for one in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            for out, right in zip(pool.map(lambda one: plan(*one), inputs), wanted, strict=True):
                np.testing.assert_array_equal(out, right)


def _jax_array(array):
    return pytest.importorskip("jax").numpy.asarray(array)


@pytest.mark.parametrize("make", [np.array, OnlyDlpack, _jax_array])
def test_equal_calls_share_a_plan_in_every_framework(make, qkv):
    sirdar.attention(*map(make, qkv))
    count = len(_functions._plans)
    for _ in range(20):
        sirdar.attention(*map(make, qkv))
        sirdar.attention(*map(make, qkv), bias=make(np.zeros((5, 1), np.float32)))
    assert len(_functions._plans) <= count + 1


def test_the_oldest_of_what_is_kept_makes_room():
    kept = {}
    for i in range(10):
        _tensor.remember(kept, i, -i, 4)
    assert kept == {6: -6, 7: -7, 8: -8, 9: -9}


def test_a_plan_is_one_object_however_it_is_copied(qkv):
    plan = sirdar.plan(*qkv)
    wanted = plan(*qkv)
    copies = [copy.copy(plan), copy.deepcopy(plan), *copy.deepcopy([plan])]
    del plan
    for one in copies:
        np.testing.assert_array_equal(one(*qkv), wanted)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match=r"^plan: .* sirdar\.plan\(\)\.$"):
            pickle.dumps(copies[0], protocol)


class _OnGpu:
    """What CuPy's arrays tell of themselves, over host memory: a kind reads no data."""

    def __init__(self, array):
        self.array, self.dtype, self.itemsize = array, array.dtype, array.itemsize
        self.shape, self.strides = array.shape, array.strides
        self.data = types.SimpleNamespace(ptr=array.ctypes.data)
        self.device = types.SimpleNamespace(id=3)


def test_arrays_of_a_gpu(qkv, monkeypatch):
    q, k, v = qkv
    kind = type("ndarray", (_OnGpu,), {"__module__": "cupy"})
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
    monkeypatch.setattr(_tensor, "by_type", {})
    monkeypatch.setattr(_tensor, "_by_framework", {})
    turned = kind(q.transpose(0, 2, 1, 3))
    pointer, layout, _ = _tensor.read(turned, "q")
    assert pointer == q.ctypes.data and layout.device == "cuda:3" and layout.shape == turned.shape
    assert layout.strides == tuple(stride // 4 for stride in turned.strides)
    with pytest.raises(ValueError, match="^k: it is on cuda:3 and q on the CPU; move"):
        sirdar.attention(q, kind(k), v)
    with pytest.raises(NotImplementedError, match="^out_a: it is on cuda:3 and merge runs on the CPU"):
        sirdar.merge(kind(q), kind(q), kind(q), kind(q))
    with pytest.raises(TypeError, match="^q: dtype float64 is none of"):
        sirdar.attention(kind(q.astype(np.float64)), kind(k), kind(v))
    bare = type("DeviceArray", (), {"__cuda_array_interface__": {"shape": q.shape}})
    with pytest.raises(TypeError, match="^q: DeviceArray has __cuda_array_interface__ alone; pass cupy"):
        sirdar.attention(bare(), k, v)
