"""Any framework's array as the C struct: pointer, dtype, shape, strides in elements, device.

A kind is one framework: it reads arrays, makes new ones and names the stream. Frameworks are imported
only after an array of theirs has been seen. What does not depend on the pointer is a Layout, kept by
the framework's own description of it, so that a repeated call costs one dictionary look-up an array.
"""

import ctypes
import struct
import sys

from . import _abi

# struct sirdar_tensor: the pointer, then what a Layout holds ready.
POINTER_AND_TAIL = struct.Struct(f"=Q{ctypes.sizeof(_abi.Tensor) - 8}s")
_TAIL = struct.Struct("=ii8q")
_MAX_LAYOUTS = 4096

# The names that NumPy, CuPy and JAX (through ml_dtypes) give our dtypes.
ARRAY_DTYPES = {
    "float32": 0,
    "bfloat16": 1,
    "float16": 2,
    "float8_e4m3fn": 3,
    "float8_e5m2": 4,
    "int32": 5,
    "int64": 6,
    "bool": 7,
}
_ARRAY_NAMES = {code: name for name, code in ARRAY_DTYPES.items()}


class Layout:
    """Everything about an array but its pointer. device: "" is the CPU, or "cuda:1"."""

    __slots__ = ("code", "device", "is_plain", "shape", "strides", "tail")

    def __init__(self, code, shape, strides, device):
        self.code, self.shape, self.strides, self.device = (
            code,
            tuple(shape),
            tuple(strides),
            device,
        )
        rank = len(self.shape)
        spare = (0,) * (_abi.MAX_RANK - rank)
        self.tail = _TAIL.pack(code, rank, *self.shape, *spare, *self.strides, *spare)
        # The rule of q, k, v and out: the last axis has stride 1.
        self.is_plain = rank == 0 or self.strides[-1] == 1 or self.shape[-1] <= 1


_FLOATS = "fp32, bf16, fp16"
_TAKES = {
    "q": _FLOATS + ", fp8_e4m3", "out": _FLOATS, "bias": _FLOATS, "mask": "boolean",
    "tensors": "fp32, int32, boolean", "cu_seqlens_q": "int32", "alibi": "fp32",
    **dict.fromkeys(("dout", "dq", "dk", "dv", "out_a", "out_b"), _FLOATS),
    **dict.fromkeys(("seqused_q", "seqused_k", "cu_seqlens_k", "page_table"), "int32"),
    **dict.fromkeys(("document_q", "document_k"), "int32"),
}  # fmt: skip
_TAKES["k"] = _TAKES["v"] = _TAKES["q"]


def _refuse_dtype(name, dtype):
    takes = _TAKES.get(name.partition("[")[0], "fp32")
    if "," in takes:
        return TypeError(f"{name}: dtype {dtype} is none of {takes}; convert it.")
    return TypeError(f"{name}: dtype {dtype} is not {takes}; convert it.")


def _checked(name, code, shape, strides, device):
    if len(shape) > _abi.MAX_RANK:
        raise ValueError(f"{name}: shape {list(shape)} has rank {len(shape)}; ranks are 0 to 4.")
    return Layout(code, shape, strides, device)


def _in_elements(name, byte_strides, item_bytes):
    if any(stride % item_bytes for stride in byte_strides):
        raise ValueError(
            f"{name}: strides of {tuple(byte_strides)} bytes are not whole elements of {item_bytes}; copy it."
        )
    return tuple(stride // item_bytes for stride in byte_strides)


def remember(known, key, value, most=_MAX_LAYOUTS):
    """known[key] = value; the oldest make room."""
    while len(known) >= most:
        try:
            known.pop(next(iter(known)), None)
        except (RuntimeError, StopIteration):  # another thread changed it in between
            continue
    known[key] = value
    return value


_shared = {}


def _shared_layout(name, code, shape, strides, device):
    """The one Layout of such arrays, for kinds that keep none by a description of the framework's own:
    what is kept by Layouts asks whether they are the same object."""
    key = (code, tuple(shape), tuple(strides), device)
    known = _shared.get(key)
    return known or remember(_shared, key, _checked(name, code, shape, strides, device))


class NumpyKind:
    """NumPy arrays, and the outputs of kinds that cannot be written to."""

    def __init__(self, numpy):
        self.numpy = numpy
        self.layouts = {}
        self.dtypes = {}  # code -> numpy.dtype, as they are asked for
        # The C interface of NumPy fixes that an array's object begins with the address of its data,
        # which is eight times faster to read than array.ctypes.data; used where it proves true.
        probe = numpy.arange(8)[3:]
        offset = object.__basicsize__
        self.offset = None
        if sys.implementation.name == "cpython":
            if ctypes.c_size_t.from_address(id(probe) + offset).value == probe.ctypes.data:
                self.offset = offset

        self.read = self._reader()
        at, offset = ctypes.c_size_t.from_address, self.offset
        self.pointer = None if offset is None else lambda array: at(id(array) + offset).value

    def matcher(self, q, k, v, out=None):
        """What a prepared plan asks about its arrays: a function of as many that gives their pointers, or None
        where they are not described as these are, or not to be written to. None where the kind has no such."""
        offset, kind, at = self.offset, type(q), ctypes.c_size_t.from_address
        if offset is None:
            return None
        inputs = (q.dtype, q.shape, q.strides, k.dtype, k.shape, k.strides, v.dtype, v.shape, v.strides)

        def match(q, k, v):
            if type(q) is type(k) is type(v) is kind and inputs == (
                q.dtype, q.shape, q.strides, k.dtype, k.shape, k.strides, v.dtype, v.shape, v.strides,
            ):  # fmt: skip
                return at(id(q) + offset).value, at(id(k) + offset).value, at(id(v) + offset).value
            return None

        if out is None:
            return match
        output = (out.dtype, out.shape, out.strides)

        def match_with_out(q, k, v, out):
            found = match(q, k, v)
            if found is None or type(out) is not kind or not out.flags.writeable:
                return None
            if (out.dtype, out.shape, out.strides) != output:
                return None
            return (*found, at(id(out) + offset).value)

        return match_with_out

    def _reader(self):
        """(pointer, Layout, owner) of an array."""
        known, make, offset = self.layouts.get, self._layout, self.offset
        at = ctypes.c_size_t.from_address

        def read(array, name):
            layout = known((array.dtype, array.shape, array.strides)) or make(array, name)
            return at(id(array) + offset).value, layout, array

        def read_slowly(array, name):
            layout = known((array.dtype, array.shape, array.strides)) or make(array, name)
            return array.ctypes.data, layout, array

        return read_slowly if offset is None else read

    def _layout(self, array, name):
        code = ARRAY_DTYPES.get(array.dtype.name)
        if code is None or not array.dtype.isnative:
            raise _refuse_dtype(name, array.dtype)
        strides = _in_elements(name, array.strides, array.itemsize)
        layout = _checked(name, code, array.shape, strides, "")
        return remember(self.layouts, (array.dtype, array.shape, array.strides), layout)

    def check_writable(self, array, name):
        if not array.flags.writeable:
            raise ValueError(f"{name}: the array is read-only; pass one that may be written.")

    def dtype_of(self, code):
        dtype = self.dtypes.get(code)
        if dtype is None:
            name = _ARRAY_NAMES[code]
            try:
                dtype = self.numpy.dtype(name)
            except TypeError:
                import ml_dtypes  # whoever brought a bf16 array has it

                dtype = self.numpy.dtype(getattr(ml_dtypes, name))
            self.dtypes[code] = dtype
        return dtype

    def empty(self, shape, code, like):
        return self.numpy.empty(shape, self.dtype_of(code))

    def maker(self, shape, code, like):
        """A function of arrays like this one that does the same, faster; all it makes has one Layout."""
        empty, dtype = self.numpy.empty, self.dtype_of(code)
        return lambda like: empty(shape, dtype)

    def contiguous(self, array):
        return self.numpy.ascontiguousarray(array)

    def stream(self, like):
        return None

    def finish(self, array):
        return array


_FIRST = frozenset(("q", "out_a"))  # what a call reads first


def _recording(torch):
    """A function that is true where torch.jit.trace or make_fx record torch's operators."""
    tracing, count, mode = torch._C._get_tracing_state, torch._C._len_torch_dispatch_stack, torch._C._get_dispatch_mode
    proxies = torch._C._TorchDispatchModeKey.PROXY
    return lambda: tracing() is not None or bool(count()) and mode(proxies) is not None


def _guards(torch):
    """What torch.compile asks before it runs what it compiled: a function of tensors that makes a function of as
    many, true where each has the type, dtype, device, shape, strides, requires_grad and negative bit of the
    first ones, and torch the modes of then (autocast, transforms of torch.func, modes that see operators; not
    whether gradients are recorded). One call of C, where asking each tensor takes thirteen. It must not be asked
    of nested tensors. None where it is not found to do that.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        def guards(*tensors):
            return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check

        plain = torch.zeros(2, 2, dtype=torch.float32, device="cpu")
        others = (
            plain.half(), plain[:1], plain[0], plain.T, plain.to("meta"), torch._neg_view(plain),
            torch.nn.Parameter(plain), plain.detach().requires_grad_(), 0,
        )  # fmt: skip
        is_as_known = guards(plain, plain)
        if is_as_known(plain, plain.clone()):
            if not any(is_as_known(plain, other) for other in others):
                return guards
    except Exception:  # it is a part of torch that promises nothing
        pass
    return None


class TorchKind:
    """torch tensors on the CPU or a GPU."""

    def __init__(self, torch):
        self.torch = torch
        self.layouts = {}
        names = {
            0: "float32", 1: "bfloat16", 2: "float16", 3: "float8_e4m3fn",
            4: "float8_e5m2", 5: "int32", 6: "int64", 7: "bool",
        }  # fmt: skip
        self.dtypes = {
            code: getattr(torch, name) for code, name in names.items() if hasattr(torch, name)
        }
        self.codes = {dtype: code for code, dtype in self.dtypes.items()}
        self.forward_ad = torch.autograd.forward_ad
        self.is_recorded = _recording(torch)
        self.read = self._reader()
        self.pointer = torch.Tensor.data_ptr
        self.guards = _guards(torch)
        self.raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def matcher(self, *tensors):
        """As NumpyKind's."""
        if any(tensor.is_neg() for tensor in tensors):
            return None
        checks = self.guards or self._descriptions
        is_as_known, is_grad_enabled = checks(*tensors), self.torch.is_grad_enabled
        is_quiet = not any(tensor.requires_grad for tensor in tensors)
        forward_ad, is_recorded = self.forward_ad, self.is_recorded

        def match(q, k, v):
            try:  # a nested tensor that is asked for its shape in C ends the program
                if q.is_nested or k.is_nested or v.is_nested or not is_as_known(q, k, v):
                    return None
            except AttributeError:  # no tensor
                return None
            if forward_ad._current_level < 0 and (is_quiet or not is_grad_enabled()) and not is_recorded():
                return q.data_ptr(), k.data_ptr(), v.data_ptr()
            return None

        def match_with_out(q, k, v, out):
            try:
                if q.is_nested or k.is_nested or v.is_nested or out.is_nested:
                    return None
                if not is_as_known(q, k, v, out):
                    return None
            except AttributeError:
                return None
            if forward_ad._current_level < 0 and (is_quiet or not is_grad_enabled()) and not is_recorded():
                return q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
            return None

        return match if len(tensors) == 3 else match_with_out

    def _descriptions(self, *tensors):
        """As _guards, for a torch that has none."""

        def described(tensor):
            return (
                type(tensor), tensor.dtype, tensor.shape, tensor.stride(), tensor.device,
                tensor.requires_grad, tensor.is_neg(),
            )  # fmt: skip

        def is_as_known(*tensors):
            try:
                return known == [*map(described, tensors)]
            except (AttributeError, RuntimeError, TypeError):  # no tensor, or one without strides
                return False

        known = [*map(described, tensors)]
        return is_as_known

    def _reader(self):
        """(pointer, Layout, owner) of a tensor."""
        known, make, is_grad_enabled = self.layouts.get, self._layout, self.torch.is_grad_enabled
        forward_ad, is_recorded = self.forward_ad, self.is_recorded

        def read(tensor, name):
            try:
                if name in _FIRST and is_recorded():
                    raise NotImplementedError(
                        f"{name}: torch records operators here, and this function is none; call that of sirdar.torch."
                    )
                key = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_cpu or tensor.device)
                layout = known(key) or make(tensor, name)
                if tensor.requires_grad and is_grad_enabled():
                    raise ValueError(
                        f"{name}: it requires a gradient, which this function does not record; call "
                        "sirdar.torch.attention, or pass a detached tensor."
                    )
                if forward_ad._current_level >= 0 and self._has_tangent(tensor):
                    raise NotImplementedError(
                        f"{name}: it has a tangent of forward-mode differentiation, which attention does not "
                        "have; pass a detached tensor."
                    )
                if tensor.is_neg():
                    tensor = self._with_its_sign(tensor, name)
                    return tensor.data_ptr(), make(tensor, name), tensor
                pointer = tensor.data_ptr()
                if not pointer and tensor.numel():  # torch's fake tensors
                    raise self._not_strided(tensor, name)
                return pointer, layout, tensor
            except NotImplementedError:
                raise
            except (RuntimeError, TypeError) as error:
                if type(error) is TypeError and tensor.layout is self.torch.strided:
                    raise  # a dtype that is refused
                raise self._not_strided(tensor, name) from error

        return read

    def _layout(self, tensor, name):
        if tensor.layout is not self.torch.strided or tensor.is_nested:
            raise self._not_strided(tensor, name)
        kind = tensor.device.type
        if kind not in ("cpu", "cuda"):
            raise NotImplementedError(
                f"{name}: a tensor of device '{tensor.device}' cannot be read; move it to cpu or cuda."
            )
        code = self.codes.get(tensor.dtype)
        if code is None:
            raise _refuse_dtype(name, tensor.dtype)
        device = "" if kind == "cpu" else f"cuda:{tensor.get_device()}"
        layout = _checked(name, code, tensor.shape, tensor.stride(), device)
        key = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_cpu or tensor.device)
        return remember(self.layouts, key, layout)

    def _not_strided(self, tensor, name):
        if tensor.is_nested:
            what = "a nested tensor; pass its values as a ragged batch with cu_seqlens"
        elif tensor.layout is not self.torch.strided:
            what = f"a tensor of layout {tensor.layout}; pass a dense one"
        else:
            what = f"a {type(tensor).__name__} without memory of its own; pass a plain tensor"
        return NotImplementedError(f"{name}: it is {what}.")

    def _has_tangent(self, tensor):
        """Not inside an autograd function, which is differentiated as a whole."""
        if not self.torch._C._is_fwd_grad_enabled():
            return False
        return self.forward_ad.unpack_dual(tensor).tangent is not None

    def _with_its_sign(self, tensor, name):
        """A copy that holds what a tensor with torch's negative bit means: minus its memory."""
        try:
            return tensor.resolve_neg()
        except (NotImplementedError, RuntimeError) as error:
            raise NotImplementedError(
                f"{name}: its negative bit is set, and torch does not negate {tensor.dtype}; pass a plain "
                "tensor."
            ) from error

    def check_writable(self, tensor, name):
        # Nested and sparse tensors have none, and are refused by read().
        if tensor.is_neg():
            raise ValueError(
                f"{name}: its negative bit is set, so torch would read minus what is written; pass a "
                "plain tensor."
            )

    def empty(self, shape, code, like):
        dtype = self.dtypes[code]
        if dtype is like.dtype:
            return like.new_empty(shape)  # a third faster
        return self.torch.empty(shape, dtype=dtype, device=like.device)

    def maker(self, shape, code, like):
        """As NumpyKind's."""
        if self.dtypes[code] is like.dtype and shape == like.shape and like.is_contiguous():
            return self.torch.empty_like  # of what torch has, the fastest
        return lambda like: self.empty(shape, code, like)

    def contiguous(self, tensor):
        return tensor.contiguous()

    def stream(self, like):
        if not like.is_cuda:
            return None
        if self.raw_stream is not None:  # what makes no object of it
            return self.raw_stream(like.get_device())
        return self.torch.cuda.current_stream(like.device).cuda_stream

    def finish(self, tensor):
        return tensor


class _NoShortWay:
    """A kind whose arrays a prepared plan reads like any other call."""

    def matcher(self, *arrays):
        return None


class CupyKind(_NoShortWay):
    """CuPy arrays."""

    def __init__(self, cupy):
        self.cupy = cupy

    def read(self, array, name):
        code = ARRAY_DTYPES.get(array.dtype.name)
        if code is None:
            raise _refuse_dtype(name, array.dtype)
        strides = _in_elements(name, array.strides, array.itemsize)
        layout = _shared_layout(name, code, array.shape, strides, f"cuda:{array.device.id}")
        return array.data.ptr, layout, array

    def check_writable(self, array, name):
        pass

    def empty(self, shape, code, like):
        name = _ARRAY_NAMES[code]
        if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            raise NotImplementedError(f"out: CuPy has no {name}; pass out= of another framework.")
        with like.device:
            return self.cupy.empty(shape, name)

    def contiguous(self, array):
        return self.cupy.ascontiguousarray(array)

    def stream(self, like):
        with like.device:
            return self.cupy.cuda.get_current_stream().ptr

    def finish(self, array):
        return array


# --- DLPack -----------------------------------------------------------------------------------------


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DL_CPU_DEVICES = (1, 3, 13)  # host memory, pinned by CUDA, managed by CUDA
_DL_CUDA = 2
# (type code, bits) -> dtype: int 0, float 2, bfloat 4, bool 6, e4m3fn 10, e5m2 12
_DL_DTYPES = {
    (0, 32): 5,
    (0, 64): 6,
    (2, 32): 0,
    (2, 16): 2,
    (4, 16): 1,
    (6, 8): 7,
    (10, 8): 3,
    (12, 8): 4,
}


def _capsule_pointer(capsule):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, b"dltensor")


def _exported(array, name):
    """(device kind, device index, capsule, the struct in it) of what says that it has DLPack."""
    try:
        kind, index = map(int, array.__dlpack_device__())
    except Exception as error:
        raise TypeError(
            f"{name}: its __dlpack_device__() gives no pair of numbers ({_brief(error)}); pass another array."
        ) from error
    if kind not in _DL_CPU_DEVICES and kind != _DL_CUDA:
        raise NotImplementedError(
            f"{name}: an array of DLPack device {int(kind)} cannot be read; move it to the CPU or to CUDA."
        )
    # 1 is CUDA's default stream in DLPack; the producer orders its work before it.
    try:
        capsule = array.__dlpack__(stream=1) if kind == _DL_CUDA else array.__dlpack__()
    except Exception as error:
        raise ValueError(
            f"{name}: its memory is not given away by DLPack ({_brief(error)}); pass a copy of it."
        ) from error
    try:
        tensor = _DLTensor.from_address(_capsule_pointer(capsule))
    except ValueError:
        raise TypeError(
            f"{name}: its __dlpack__() gives no capsule of an unused tensor; pass another array."
        ) from None
    if not 0 <= tensor.ndim <= _abi.MAX_RANK or (tensor.ndim and not tensor.shape):
        raise ValueError(f"{name}: DLPack gives it {tensor.ndim} axes; ranks are 0 to 4.")
    return kind, index, capsule, tensor


def _brief(error):
    """What an error says, to stand within a sentence."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _read_dlpack(array, name):
    kind, index, capsule, tensor = _exported(array, name)
    code = _DL_DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if code is None:
        raise _refuse_dtype(name, getattr(array, "dtype", f"DLPack {tensor.code}:{tensor.bits}"))
    shape = tuple(tensor.shape[: tensor.ndim])
    if tensor.strides:
        strides = tuple(tensor.strides[: tensor.ndim])
    else:
        strides = contiguous_strides(shape)
    device = "" if kind != _DL_CUDA else f"cuda:{index}"
    # The capsule owns the memory until it goes.
    return (
        (tensor.data or 0) + tensor.byte_offset,
        _shared_layout(name, code, shape, strides, device),
        capsule,
    )


def contiguous_strides(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class JaxKind(_NoShortWay):
    """JAX arrays on the CPU. They cannot be written to: outputs are NumPy's, made JAX's at the end."""

    def __init__(self, jax, numpy_kind):
        self.jax = jax
        self.numpy_kind = numpy_kind

    def read(self, array, name):
        if isinstance(array, self.jax.core.Tracer):
            raise TypeError(
                f"{name}: it is traced by JAX; call sirdar.jax.attention inside jax.jit and jax.grad."
            )
        if any(device.platform != "cpu" for device in array.devices()):
            raise NotImplementedError(
                f"{name}: JAX arrays of a GPU cannot be read; use torch or CuPy there."
            )
        return _read_dlpack(array, name)

    def check_writable(self, array, name):
        raise TypeError(f"{name}: JAX arrays cannot be written to; leave it out.")

    def empty(self, shape, code, like):
        return self.numpy_kind.empty(shape, code, like)

    def contiguous(self, array):
        return self.jax.numpy.array(array)

    def stream(self, like):
        return None

    def finish(self, array):
        return self.jax.numpy.asarray(array)


class DlpackKind(_NoShortWay):
    """Arrays of frameworks not named here, by DLPack. Outputs on the CPU are NumPy's."""

    def __init__(self, numpy_kind):
        self.numpy_kind = numpy_kind

    def read(self, array, name):
        return _read_dlpack(array, name)

    def check_writable(self, array, name):
        pass

    def empty(self, shape, code, like):
        if like.__dlpack_device__()[0] == _DL_CUDA:
            raise NotImplementedError(
                "out: this framework's GPU memory cannot be allocated; pass out=."
            )
        return self.numpy_kind().empty(shape, code, like)

    def contiguous(self, array):
        return self.numpy_kind().numpy.ascontiguousarray(self.numpy_kind().numpy.from_dlpack(array))

    def stream(self, like):
        return None

    def finish(self, array):
        return array


# --- which kind -------------------------------------------------------------------------------------

by_type = {}
_by_framework = {}


def _framework(name):
    kind = _by_framework.get(name)
    if kind is None:
        if name == "numpy":
            import numpy

            kind = NumpyKind(numpy)
        elif name == "jax":
            kind = JaxKind(sys.modules["jax"], _framework("numpy"))
        elif name == "dlpack":
            kind = DlpackKind(lambda: _framework("numpy"))
        else:
            kind = {"torch": TorchKind, "cupy": CupyKind}[name](sys.modules[name])
        _by_framework[name] = kind
    return kind


def _owner(kind):
    """The framework whose array class this is or derives from, by the module it was defined in."""
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if root == "numpy" and base.__name__ == "ndarray":
            return "numpy"
        if root == "torch" and base.__name__ in ("Tensor", "TensorBase"):
            return "torch"
        if root == "cupy" and base.__name__ == "ndarray":
            return "cupy"
        if root in ("jax", "jaxlib") and "jax" in sys.modules:
            return "jax"
    return "dlpack" if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__") else None


def kind_of(array, name):
    """The kind of an array; TypeError if it is none."""
    kind = by_type.get(type(array))
    if kind is None:
        owner = _owner(type(array))
        if any(base.__name__ == "MaskedArray" for base in type(array).__mro__):
            raise TypeError(
                f"{name}: a masked array's mask has no meaning here; pass its filled() and mask=."
            )
        if owner is None and hasattr(type(array), "__cuda_array_interface__"):
            raise TypeError(
                f"{name}: {type(array).__name__} has __cuda_array_interface__ alone; pass cupy.asarray or "
                "torch.as_tensor of it."
            )
        if owner is None:
            raise TypeError(
                f"{name}: {type(array).__name__} is not an array; pass one of NumPy, torch, JAX, CuPy, "
                "or anything with DLPack."
            )
        kind = by_type[type(array)] = _framework(owner)
    return kind


def read(array, name):
    """(pointer, Layout, what must stay alive until the call is over)."""
    kind = by_type.get(type(array)) or kind_of(array, name)
    return kind.read(array, name)
