"""From arrays and options to the C struct that says what to compute."""

import ctypes
import math
import operator
import re
import sys
from collections.abc import Mapping

from . import _abi, _tensor
from ._said import said, shortened  # noqa: F401  shortened for who has this module

# What a caller may say beside the arrays, with its default. The names are the glossary's.
OPTIONS = {
    "softmax_scale": None,
    "softcap": 0.0,
    "causal": False,
    "window_left": None,
    "window_right": None,
    "chunk_size": 0,
    "alignment": "bottom_right",
    "dropout_p": 0.0,
    "seqlen_q": None,
    "seqlen_k": None,
    "score_mod": None,
    "mask_mod": None,
    "deterministic": True,
    "batch_invariant": False,
    "dtype_out": None,
    "return_lse": False,
    "return_max_logit": False,
    "needs_dbias": False,
    "needs_dsink": False,
    "implementation": None,
    "isa": None,
    "allow_reference": False,
    "num_threads": 0,
    "knobs": None,
}


PLAIN = frozenset((type(None), bool, int, float, str))


def held(name, value):
    """The number that an array of one element holds, whatever its rank and framework; anything else as it is. So
    numbers are read: what Python's float() and operator.index() take of arrays depends on who made them."""
    if type(value) in PLAIN:
        return value
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple) or not hasattr(value, "item") or math.prod(shape) != 1:
        return value
    if getattr(value, "requires_grad", False) and sys.modules["torch"].is_grad_enabled():
        raise ValueError(f"{name}: it requires_grad, and a number has no gradient; pass its .detach().")
    try:
        return value.item()
    except RuntimeError:  # without data; refused by who reads a number
        return value


def _is_bool(value):
    return type(value).__name__ in ("bool", "bool_")  # Python's and NumPy's


def integer(name, value):
    """A whole number: an int of any framework, or an array that holds one; no bool, no float, 2.0 neither."""
    value = held(name, value)
    if _is_bool(value):
        raise TypeError(f"{name}: {said(value)} is a flag, not a number; pass an int.")
    try:
        number = operator.index(value)
    except (TypeError, RuntimeError):  # the last of tensors without data
        raise TypeError(f"{name}: {said(value)} is not a whole number; pass an int.") from None
    if not -(2**63) < number < 2**63:
        raise ValueError(f"{name}: {said(number)} does not fit in 64 bits; pass a smaller number.")
    return number


def small_integer(name, value):
    number = integer(name, value)
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{name}: {number} does not fit in 32 bits; pass a smaller number.")
    return number


def count(name, value):
    """An integer that is not negative."""
    number = integer(name, value)
    if number < 0:
        raise ValueError(f"{name}: is {number}; 0 or more is needed.")
    return number


def real(name, value):
    """A number: a float or an int of any framework, or an array that holds one; no bool."""
    value = held(name, value)
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name}: {said(value)} is not a number; pass a float.")
    if _is_bool(value):
        raise TypeError(f"{name}: {said(value)} is a flag, not a number; pass a float.")
    if getattr(value, "shape", ()) != ():
        raise TypeError(f"{name}: {said(value)} is not a number; pass a float.")
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):  # the last of tensors without data
        raise TypeError(f"{name}: {said(value)} is not a number; pass a float.") from None
    except OverflowError:
        raise ValueError(
            f"{name}: {said(value)} does not fit in a float; pass a smaller number."
        ) from None
    if math.isfinite(number) and abs(number) > 3.4028235677973366e38:
        raise ValueError(f"{name}: {number} is beyond what fp32 can hold; pass a smaller number.")
    return number


def switch(name, value):
    """A real number that is 0 where nothing is asked for: what fp32 takes for 0 does ask."""
    number = real(name, value)
    if 0 < abs(number) < 2.0**-126:
        raise ValueError(f"{name}: {number} is too near 0 for fp32; pass 1.2e-38 or more, or 0.")
    return number


def flag(name, value):
    """True, False, or their ints; a bool of any framework, or an array that holds one."""
    value = held(name, value)
    if isinstance(value, bool):
        return int(value)
    try:
        number = int(value) if _is_bool(value) else operator.index(value)
    except (TypeError, RuntimeError):
        number = None
    if number not in (0, 1):
        raise TypeError(f"{name}: {said(value)} is not a flag; pass True or False.")
    return number


def one_of(name, value, allowed):
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}: {said(value)} is not one of {', '.join(allowed)}.")
    return allowed[value]


def text(name, value):
    if not isinstance(value, str):
        raise TypeError(f"{name}: {type(value).__name__} is not a text; pass a str.")
    if "\0" in value:
        raise ValueError(f"{name}: it holds a zero byte; remove it.")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(
            f"{name}: it holds half of a surrogate pair, which is no character; remove it."
        ) from None


def mapping(name, value, entries):
    """A dict of what is given by name."""
    if value is None or isinstance(value, Mapping):
        return dict(value or {})
    raise TypeError(f"{name}: {type(value).__name__} is not a dict; pass {entries}.")


def _dtype_name(value):
    """A dtype by our name or by that of a framework: "fp32", "float32", numpy.float32, torch.float32."""
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        name = value
    else:
        name = getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)
    name = str(name).rpartition(".")[2]
    code = _tensor.ARRAY_DTYPES.get(name)
    if code is None:
        return name if isinstance(value, str) else value
    return _abi.DTYPE_NAMES[code]


def needs_rank(name, layout, rank, description):
    if len(layout.shape) != rank:
        raise ValueError(
            f"{name}: shape {list(layout.shape)} has rank {len(layout.shape)}; it must be {description}."
        )


def check_same_device(layouts):
    device = layouts["q"].device if "q" in layouts else None
    for name, layout in layouts.items():
        if device is not None and layout.device != device:
            raise ValueError(
                f"{name}: it is on {layout.device or 'the CPU'} and q on {device or 'the CPU'}; "
                "move all tensors to one device."
            )


def sizes_from(layouts, options, problem):
    """Sizes, layouts and dtypes of q, k and v; what does not fit together the library tells."""
    for name in ("q", "k", "v"):
        if name not in layouts:
            raise TypeError(f"{name}: it is None; pass an array.")
    q, k, v = layouts["q"], layouts["k"], layouts["v"]
    is_ragged_q, is_ragged_k = "cu_seqlens_q" in layouts, "cu_seqlens_k" in layouts
    is_paged = "page_table" in layouts
    if is_paged and is_ragged_k:
        raise ValueError(
            "page_table: it is given together with cu_seqlens_k; K/V are paged or ragged, pass one."
        )
    q_words = (
        "[total_q, num_heads_q, head_dim]"
        if is_ragged_q
        else "[batch, seqlen_q, num_heads_q, head_dim]"
    )
    needs_rank("q", q, 3 if is_ragged_q else 4, q_words)
    kv_words = "[batch, seqlen_k, num_heads_kv, %s]"
    if is_ragged_k:
        kv_words = "[total_k, num_heads_kv, %s]"
    elif is_paged:
        kv_words = "[num_pages, page_size, num_heads_kv, %s]"
    needs_rank("k", k, 3 if is_ragged_k else 4, kv_words % "head_dim")
    needs_rank("v", v, 3 if is_ragged_k else 4, kv_words % "head_dim_v")
    problem.dtype_q, problem.dtype_kv = q.code, k.code
    problem.num_heads_q, problem.head_dim = q.shape[-2:]
    problem.num_heads_kv, problem.head_dim_v = k.shape[-2], v.shape[-1]
    if problem.head_dim_v == 0:
        raise ValueError("v: its last axis, head_dim_v, has size 0; it must be from 1 to 512.")
    if is_ragged_q:
        needs_rank("cu_seqlens_q", layouts["cu_seqlens_q"], 1, "[batch + 1]")
        problem.batch = max(layouts["cu_seqlens_q"].shape[0] - 1, 0)
        problem.layout_q, problem.total_q = _abi.LAYOUTS["ragged"], q.shape[0]
        problem.seqlen_q = integer("seqlen_q", options["seqlen_q"])
    else:
        problem.batch, problem.seqlen_q = q.shape[:2]
    if is_ragged_k:
        needs_rank("cu_seqlens_k", layouts["cu_seqlens_k"], 1, "[batch + 1]")
        problem.layout_kv, problem.total_k = _abi.LAYOUTS["ragged"], k.shape[0]
        problem.seqlen_k = integer("seqlen_k", options["seqlen_k"])
    elif is_paged:
        needs_rank("page_table", layouts["page_table"], 2, "[batch, max_pages]")
        problem.layout_kv, problem.page_size = _abi.LAYOUTS["paged"], k.shape[1]
        longest = layouts["page_table"].shape[1] * k.shape[1]
        problem.seqlen_k = (
            longest if options["seqlen_k"] is None else integer("seqlen_k", options["seqlen_k"])
        )
    else:
        problem.seqlen_k = k.shape[1]
    for name, is_used in (("seqlen_q", is_ragged_q), ("seqlen_k", is_ragged_k or is_paged)):
        if options[name] is not None and not is_used:
            raise ValueError(f"{name}: it is given although the shapes tell it; leave it out.")


def axes_of(name, layout):
    needs_rank(name, layout, 4, "[batch|1, num_heads_q|1, seqlen_q|1, seqlen_k|1]")
    bits = (_abi.AXES["batch"], _abi.AXES["head"], _abi.AXES["query"], _abi.AXES["key"])
    return sum(bit for bit, size in zip(bits, layout.shape) if size != 1)


def scores_from(layouts, options, problem):
    if options["softmax_scale"] is not None:
        problem.has_softmax_scale, problem.softmax_scale = (
            1,
            real("softmax_scale", options["softmax_scale"]),
        )
    problem.softcap = switch("softcap", options["softcap"])
    problem.is_causal = flag("causal", options["causal"])
    problem.alignment = one_of("alignment", options["alignment"], _abi.ALIGNMENTS)
    for side in ("window_left", "window_right"):
        if options[side] is not None:
            setattr(problem, side, integer(side, options[side]))
    problem.chunk_size = integer("chunk_size", options["chunk_size"])
    problem.dropout_p = switch("dropout_p", options["dropout_p"])
    if ("document_q" in layouts) != ("document_k" in layouts):
        given, missing = ("document_q", "document_k")[:: 1 if "document_q" in layouts else -1]
        raise ValueError(f"{missing}: it is missing and {given} is given; documents take both.")
    problem.has_document = int("document_q" in layouts)
    problem.has_seqused_q, problem.has_seqused_k = (
        int("seqused_q" in layouts),
        int("seqused_k" in layouts),
    )
    problem.has_alibi, problem.has_sink = int("alibi" in layouts), int("sink" in layouts)
    if "mask" in layouts:
        problem.has_mask, problem.mask_axes = 1, axes_of("mask", layouts["mask"])
    if "bias" in layouts:
        problem.has_bias, problem.bias_axes = 1, axes_of("bias", layouts["bias"])
        problem.dtype_bias = layouts["bias"].code


def outputs_from(op, layouts, options, problem):
    problem.op = _abi.OPS[op]
    if options["dtype_out"] is not None:
        problem.dtype_out = one_of("dtype_out", _dtype_name(options["dtype_out"]), _abi.DTYPES)
    if "out" in layouts:
        code = layouts["out"].code
        if options["dtype_out"] is not None and problem.dtype_out != code:
            names = _abi.DTYPE_NAMES
            raise ValueError(
                f"dtype_out: {names[problem.dtype_out]} is asked for and out has dtype {names[code]}; leave one of "
                "the two out."
            )
        problem.dtype_out = code
    problem.deterministic = flag("deterministic", options["deterministic"])
    problem.batch_invariant = flag("batch_invariant", options["batch_invariant"])
    problem.needs_lse = flag("return_lse", options["return_lse"])
    problem.needs_max_logit = flag("return_max_logit", options["return_max_logit"])
    problem.has_dlse = int("dlse" in layouts)
    problem.needs_dbias = flag("needs_dbias", options["needs_dbias"])
    problem.needs_dsink = flag("needs_dsink", options["needs_dsink"])


def expressions_from(options, tensors, scalars, problem):
    """tensors: (name, Layout, needs_grad) each; scalars: names. Returns what must stay alive."""
    keep = []
    for name in ("score_mod", "mask_mod"):
        if options[name] is not None:
            setattr(problem, name, text(name, options[name]))
    if tensors:
        listed = (_abi.ExpressionTensor * len(tensors))()
        for entry, (name, layout, needs_grad) in zip(listed, tensors):
            entry.name, entry.dtype, entry.rank = (
                text("tensors", name),
                layout.code,
                len(layout.shape),
            )
            entry.needs_grad = int(needs_grad)
        problem.tensors, problem.num_tensors = listed, len(tensors)
        keep.append(listed)
    if scalars:
        names = (ctypes.c_char_p * len(scalars))(*(text("scalars", name) for name in scalars))
        problem.scalars, problem.num_scalars = names, len(scalars)
        keep.append(names)
    return keep


def problem_from(op, layouts, options, tensors=(), scalars=()):
    """The struct, and what must stay alive with it. layouts: name -> Layout of the arrays given."""
    problem = _abi.made(_abi.Problem)
    check_same_device(layouts)
    sizes_from(layouts, options, problem)
    scores_from(layouts, options, problem)
    outputs_from(op, layouts, options, problem)
    return problem, expressions_from(options, tensors, scalars, problem)


def _knob_text(value):
    """As the library reads it: true and false for the bools of Python and NumPy."""
    try:
        word = str(value)
    except ValueError:  # more digits than Python writes, which are more than the library reads
        word = said(value)
    return word.lower() if _is_bool(value) else word


def plan_options_from(options, device):
    c = _abi.made(_abi.PlanOptions)
    for name in ("implementation", "isa"):
        if options[name] is not None:
            setattr(c, name, text(name, options[name]))
    if device:
        c.device = text("device", device)
    c.allow_reference = flag("allow_reference", options["allow_reference"])
    c.num_threads = small_integer("num_threads", options["num_threads"])
    c.executor = options.get("executor")
    knobs = mapping("knobs", options["knobs"], "{name: value}")
    keep = None
    if knobs:
        pairs = knobs.items()
        keep = (_abi.Knob * len(pairs))(
            *((text("knobs", _knob_text(n)), text("knobs", _knob_text(v))) for n, v in pairs)
        )
        c.knobs, c.num_knobs = keep, len(pairs)
    return c, keep


# A word of a problem string that a struct cannot hold, whole: expressions with their quotes, tensors, scalars.
_EXPRESSION = re.compile(
    r'(?<!\S)(?:(?:score_mod|mask_mod):"(?:\\.|[^"\\])*"|tensor:\S+|scalar:\S+)'
)


def facts_of_text(line):
    """A valid problem string as a struct without its expressions, its tensors and its scalars."""
    words = _EXPRESSION.findall(line)
    tensors = [word.split(":")[1:] for word in words if word.startswith("tensor:")]
    scalars = [word.split(":")[1] for word in words if word.startswith("scalar:")]
    problem = _abi.made(_abi.Problem)
    rest = _EXPRESSION.sub("", line)
    _abi.check(
        _abi.library().sirdar_problem_parse(text("problem", rest), ctypes.addressof(problem))
    )
    return problem, [(parts[0], len(parts) > 3) for parts in tensors], scalars
