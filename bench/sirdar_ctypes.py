"""The few entries of the C interface that the comparisons with torch need, over torch tensors."""

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_int32, c_int64, c_size_t, c_uint64, c_void_p

import torch

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int32: 5, torch.bool: 7}

TENSORS = (
    "q k v out lse max_logit cu_seqlens_q cu_seqlens_k seqused_q seqused_k page_table "
    "document_q document_k mask bias alibi sink dout dlse dq dk dv dbias dsink"
).split()


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("shape", c_int64 * 4),
        ("stride", c_int64 * 4),
    ]

    def describe(self, tensor, axes=None):
        """`axes`: those of the tensor in the order that Sirdar names them."""
        axes = axes or range(tensor.dim())
        self.data = tensor.data_ptr()
        self.dtype = DTYPES[tensor.dtype]
        self.rank = tensor.dim()
        for i, axis in enumerate(axes):
            self.shape[i] = tensor.shape[axis]
            self.stride[i] = tensor.stride(axis)


class Args(Structure):
    _fields_ = (
        [("struct_size", c_size_t)]
        + [(name, Tensor) for name in TENSORS]
        + [
            ("tensors", c_void_p),
            ("num_tensors", c_size_t),
            ("dtensors", c_void_p),
            ("num_dtensors", c_size_t),
            ("scalars", c_void_p),
            ("num_scalars", c_size_t),
            ("dropout_seed", c_uint64),
            ("dropout_offset", c_uint64),
            ("workspace", c_void_p),
            ("workspace_bytes", c_size_t),
        ]
    )


class Knob(Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class Options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("implementation", c_char_p),
        ("isa", c_char_p),
        ("device", c_char_p),
        ("allow_reference", c_int32),
        ("num_threads", c_int32),
        ("executor", c_void_p),
        ("knobs", c_void_p),
        ("num_knobs", c_size_t),
    ]


class Refused(Exception):
    """Sirdar's own sentence."""


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name in ("sirdar_status_message", "sirdar_version", "sirdar_plan_name"):
            getattr(self.lib, name).restype = c_char_p
        self.lib.sirdar_plan_name.argtypes = [c_void_p]
        self.lib.sirdar_plan_destroy.argtypes = [c_void_p]
        self.lib.sirdar_plan_create_from_text.argtypes = [c_char_p, c_void_p, c_void_p]
        self.lib.sirdar_plan_workspace_bytes.argtypes = [c_void_p, c_void_p]
        self.lib.sirdar_plan_explain.argtypes = [c_void_p, c_char_p, c_size_t, c_void_p]
        self.lib.sirdar_run.argtypes = [c_void_p, POINTER(Args), c_void_p]
        self.lib.sirdar_args_init.argtypes = [POINTER(Args), c_size_t]
        self.lib.sirdar_plan_options_init.argtypes = [POINTER(Options), c_size_t]

    def check(self, status):
        if status != 0:
            raise Refused(self.lib.sirdar_status_message().decode())

    def version(self):
        return self.lib.sirdar_version().decode()

    def plan(self, problem, threads=0, device=None, knobs=()):
        """`knobs`: "name=value" words."""
        return Plan(self, problem, threads, device, knobs)


class Plan:
    """A plan, its workspace, and arguments that are described once and run many times."""

    def __init__(self, library, problem, threads=0, device=None, knobs=()):
        self.library, self.handle = library, c_void_p()
        pairs = (Knob * len(knobs))(*(Knob(*knob.encode().split(b"=", 1)) for knob in knobs))
        options = Options()
        library.check(library.lib.sirdar_plan_options_init(byref(options), ctypes.sizeof(Options)))
        options.num_threads = threads
        options.device = device.encode() if device else None
        options.knobs, options.num_knobs = ctypes.cast(pairs, c_void_p), len(knobs)
        library.check(
            library.lib.sirdar_plan_create_from_text(
                problem.encode(), byref(options), byref(self.handle)
            )
        )
        size = c_size_t()
        library.check(library.lib.sirdar_plan_workspace_bytes(self.handle, byref(size)))
        self.workspace = torch.empty(size.value + 64, dtype=torch.uint8, device=device or "cpu")
        self.args = Args()
        library.check(library.lib.sirdar_args_init(byref(self.args), ctypes.sizeof(Args)))
        self.args.workspace = (self.workspace.data_ptr() + 63) // 64 * 64
        self.args.workspace_bytes = size.value

    def __del__(self):
        if getattr(self, "handle", None):
            self.library.lib.sirdar_plan_destroy(self.handle)

    def explain(self):
        text = ctypes.create_string_buffer(1 << 14)
        self.library.check(self.library.lib.sirdar_plan_explain(self.handle, text, len(text), None))
        return text.value.decode()

    def name(self):
        return self.library.lib.sirdar_plan_name(self.handle).decode()

    def set(self, name, tensor, axes=None):
        getattr(self.args, name).describe(tensor, axes)

    def run(self, stream=None):
        status = self.library.lib.sirdar_run(self.handle, self.args, stream)
        if status != 0:
            self.library.check(status)
