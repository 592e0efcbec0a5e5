"""The C interface (include/sirdar/sirdar.h) as ctypes sees it, and where the library is found.

Nothing is loaded when this module is imported: library() does it at the first call that computes.
tests/python/test_abi.py asks the C compiler whether every size, offset and value here is right.
"""

import ctypes
import os
import threading
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)

UNBOUNDED = -(2**63)
MAX_RANK = 4

STATUS = {
    "ok": 0,
    "invalid_argument": 1,
    "unsupported": 2,
    "out_of_memory": 3,
    "compile_failed": 4,
    "device_error": 5,
    "internal": 6,
}
DTYPES = {
    "fp32": 0,
    "bf16": 1,
    "fp16": 2,
    "fp8_e4m3": 3,
    "fp8_e5m2": 4,
    "int32": 5,
    "int64": 6,
    "boolean": 7,
}
DTYPE_NAMES = {code: name for name, code in DTYPES.items()}
DTYPE_DEFAULT = -1
ITEM_BYTES = {0: 4, 1: 2, 2: 2, 3: 1, 4: 1, 5: 4, 6: 8, 7: 1}
OPS = {"forward": 0, "backward": 1}
LAYOUTS = {"dense": 0, "ragged": 1, "paged": 2}
ALIGNMENTS = {"bottom_right": 0, "top_left": 1}
AXES = {"batch": 1, "head": 2, "query": 4, "key": 8, "all": 15}


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("shape", c_int64 * MAX_RANK),
        ("stride", c_int64 * MAX_RANK),
    ]


class ExpressionTensor(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("needs_grad", c_int32),
        ("reserved", c_int32),
    ]


class Problem(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("op", c_int32),
        ("dtype_q", c_int32),
        ("dtype_kv", c_int32),
        ("dtype_out", c_int32),
        ("batch", c_int64),
        ("seqlen_q", c_int64),
        ("seqlen_k", c_int64),
        ("total_q", c_int64),
        ("total_k", c_int64),
        ("num_heads_q", c_int64),
        ("num_heads_kv", c_int64),
        ("head_dim", c_int64),
        ("head_dim_v", c_int64),
        ("layout_q", c_int32),
        ("layout_kv", c_int32),
        ("page_size", c_int64),
        ("has_seqused_q", c_int32),
        ("has_seqused_k", c_int32),
        ("is_causal", c_int32),
        ("alignment", c_int32),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("chunk_size", c_int64),
        ("has_document", c_int32),
        ("has_mask", c_int32),
        ("mask_axes", c_int32),
        ("has_softmax_scale", c_int32),
        ("softmax_scale", c_float),
        ("softcap", c_float),
        ("has_bias", c_int32),
        ("dtype_bias", c_int32),
        ("bias_axes", c_int32),
        ("has_alibi", c_int32),
        ("has_sink", c_int32),
        ("dropout_p", c_float),
        ("needs_lse", c_int32),
        ("needs_max_logit", c_int32),
        ("has_dlse", c_int32),
        ("needs_dbias", c_int32),
        ("needs_dsink", c_int32),
        ("deterministic", c_int32),
        ("batch_invariant", c_int32),
        ("score_mod", c_char_p),
        ("mask_mod", c_char_p),
        ("tensors", POINTER(ExpressionTensor)),
        ("num_tensors", c_size_t),
        ("scalars", POINTER(c_char_p)),
        ("num_scalars", c_size_t),
    ]


class Knob(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class Executor(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("parallel_for", c_void_p), ("context", c_void_p)]


class PlanOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("implementation", c_char_p),
        ("isa", c_char_p),
        ("device", c_char_p),
        ("allow_reference", c_int32),
        ("num_threads", c_int32),
        ("executor", c_void_p),
        ("knobs", POINTER(Knob)),
        ("num_knobs", c_size_t),
    ]


class NamedTensor(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("tensor", Tensor)]


class NamedValue(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("value", c_double)]


# The tensors of a call, in the order of the struct.
TENSORS_BEFORE_BACKWARD = (
    "q", "k", "v", "out", "lse", "max_logit",
    "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "page_table",
    "document_q", "document_k", "mask", "bias", "alibi", "sink",
)  # fmt: skip
TENSORS_OF_BACKWARD = ("dout", "dlse", "dq", "dk", "dv", "dbias", "dsink")


class Args(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        *((name, Tensor) for name in TENSORS_BEFORE_BACKWARD + TENSORS_OF_BACKWARD),
        ("tensors", POINTER(NamedTensor)),
        ("num_tensors", c_size_t),
        ("dtensors", POINTER(NamedTensor)),
        ("num_dtensors", c_size_t),
        ("scalars", POINTER(NamedValue)),
        ("num_scalars", c_size_t),
        ("dropout_seed", c_uint64),
        ("dropout_offset", c_uint64),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
    ]


class MergeArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        *((name, Tensor) for name in ("out_a", "lse_a", "out_b", "lse_b", "out", "lse")),
    ]


class JitOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("cache_dir", c_char_p),
        ("kernel_dir", c_char_p),
        ("dump_dir", c_char_p),
        ("nvrtc", c_char_p),
        ("may_compile", c_int32),
        ("reserved", c_int32),
    ]


# name -> (result, arguments). Pointers to structs are passed as addresses: converting an int costs a
# fraction of what byref does.
FUNCTIONS = {
    "sirdar_version": (c_char_p, []),
    "sirdar_status_name": (c_char_p, [c_int]),
    "sirdar_status_message": (c_char_p, []),
    "sirdar_problem_init": (c_int, [c_void_p, c_size_t]),
    "sirdar_plan_options_init": (c_int, [c_void_p, c_size_t]),
    "sirdar_executor_init": (c_int, [c_void_p, c_size_t]),
    "sirdar_openmp_executor": (c_int, [c_char_p, c_void_p]),
    "sirdar_args_init": (c_int, [c_void_p, c_size_t]),
    "sirdar_merge_args_init": (c_int, [c_void_p, c_size_t]),
    "sirdar_jit_options_init": (c_int, [c_void_p, c_size_t]),
    "sirdar_set_jit_options": (c_int, [c_void_p]),
    "sirdar_problem_validate": (c_int, [c_void_p]),
    "sirdar_problem_parse": (c_int, [c_char_p, c_void_p]),
    "sirdar_problem_print": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "sirdar_plan_create": (c_int, [c_void_p, c_void_p, c_void_p]),
    "sirdar_plan_create_from_text": (c_int, [c_char_p, c_void_p, c_void_p]),
    "sirdar_plan_destroy": (None, [c_void_p]),
    "sirdar_plan_name": (c_char_p, [c_void_p]),
    "sirdar_plan_workspace_bytes": (c_int, [c_void_p, c_void_p]),
    "sirdar_plan_explain": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "sirdar_plan_prepare": (c_int, [c_void_p]),
    "sirdar_run": (c_int, [c_void_p, c_void_p, c_void_p]),
    "sirdar_merge": (c_int, [c_void_p]),
}

_EXCEPTIONS = {1: ValueError, 2: NotImplementedError, 3: MemoryError}

# Where a sentence of the library speaks of a field of C's, what a Python caller would write.
_IN_PYTHON_TERMS = (
    ("set has_mask", "pass mask"),
    ("set has_bias", "pass bias"),
    ("set has_sink", "pass sink"),
    (
        "has_seqused_k: paged K/V need the length of every sequence; set it and pass",
        "seqused_k: paged K/V need the length of every sequence; pass",
    ),
    ("SIRDAR_UNBOUNDED for no bound", "None for no bound"),
    ("or clear has_softmax_scale for 1/sqrt(head_dim)", "or None for 1/sqrt(head_dim)"),
    ("or SIRDAR_DTYPE_default.", "or None."),
    ("make the plan with a device of NULL", "pass tensors of the CPU"),
    ("options.allow_reference is set", "allow_reference=True is passed"),
)

_lock = threading.Lock()
_library = None


def candidates():
    """Where the library may be: in the wheel, in the build folder of a checkout, where the loader looks."""
    package = os.path.dirname(os.path.realpath(__file__))
    yield os.path.join(package, "libsirdar.so")
    checkout = os.path.dirname(os.path.dirname(package))
    yield os.path.join(checkout, "build", "release", "libsirdar.so")
    yield "libsirdar.so.0"


def _load():
    failures = []
    for path in candidates():
        if os.path.isabs(path) and not os.path.exists(path):
            continue
        try:
            loaded = ctypes.CDLL(path)
            for name, (result, arguments) in FUNCTIONS.items():
                function = getattr(loaded, name)
                function.restype, function.argtypes = result, arguments
            return loaded
        except (OSError, AttributeError) as error:
            failures.append(str(error))
    reason = "; ".join(failures) or "it is in none of the places where it is looked for"
    raise RuntimeError(
        f"libsirdar.so could not be loaded ({reason}); install a wheel of this machine's kind, or "
        "build it with ./dev build."
    )


def library():
    """The loaded library; RuntimeError says why it cannot be had."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = _load()
    return _library


# The same of who passes arrays, which tell the dtypes of a problem.
OF_ARRAYS = (
    ("dtype_q: ", "q: dtype "),
    ("dtype_kv: ", "k: dtype "),
    ("dtype_bias: ", "bias: dtype "),
    (" differs from dtype_q = ", " differs from q's "),
)
OF_OUT = (("dtype_out: ", "out: dtype "), (", or None.", "."))


def check(status, more_terms=()):
    """Raises what a status means, with the library's own sentence."""
    if status:
        message = library().sirdar_status_message().decode("utf-8", "replace")
        for said, meant in (*_IN_PYTHON_TERMS, *more_terms):
            message = message.replace(said, meant)
        raise _EXCEPTIONS.get(status, RuntimeError)(message)


def made(kind):
    """A struct with the library's defaults: made(Problem)."""
    loaded = library()
    init = {
        Problem: loaded.sirdar_problem_init,
        PlanOptions: loaded.sirdar_plan_options_init,
        Executor: loaded.sirdar_executor_init,
        Args: loaded.sirdar_args_init,
        MergeArgs: loaded.sirdar_merge_args_init,
        JitOptions: loaded.sirdar_jit_options_init,
    }[kind]
    value = kind()
    check(init(ctypes.addressof(value), ctypes.sizeof(kind)))
    return value


def text_of(function, handle):
    """The text that a C function writes into the caller's buffer."""
    length = c_size_t()
    check(function(handle, None, 0, ctypes.addressof(length)))
    buffer = ctypes.create_string_buffer(length.value + 1)
    check(function(handle, ctypes.addressof(buffer), length.value + 1, None))
    return buffer.value.decode("utf-8")
