"""The functions of the package that compute: attention, its backward pass, merging."""

from __future__ import annotations

import ctypes
from types import MappingProxyType
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi, _plan, _problem, _tensor, _threads

Array = Any  # of NumPy, torch, JAX, CuPy, or anything with DLPack
Expression = Union[str, Callable[..., Any]]

_MAX_PLANS = 512
_plans = {}  # what the caller gave, without pointers -> _Known
prepared = {}  # what sirdar.torch keeps of plans; it goes where they go

# The arrays of a forward call in the order in which the functions below pass them.
_FORWARD = (
    "q", "k", "v", "out", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "page_table",
    "document_q", "document_k", "mask", "bias", "alibi", "sink",
)  # fmt: skip
_QKV = frozenset(("q", "k", "v"))
_OPTIONS = tuple(_problem.OPTIONS)
_FP32 = _abi.DTYPES["fp32"]


class Gradients(NamedTuple):
    """What sirdar.backward returns: gradients like what they are the gradient of.

    dbias, dsink and the dict dtensors are fp32; None, None and {} where they were not asked for.
    """

    dq: Array
    dk: Array
    dv: Array
    dbias: Optional[Array] = None
    dsink: Optional[Array] = None
    dtensors: Mapping[str, Array] = MappingProxyType({})


class _Known:
    """A plan with the shapes of its outputs."""

    __slots__ = ("kind", "lse_shape", "make_out", "out_layout", "out_shape", "plan")

    def __init__(self, plan, layouts):
        self.plan = plan
        self.kind = self.make_out = self.out_layout = None
        self.out_shape = (*layouts["q"].shape[:-1], layouts["v"].shape[-1])
        self.lse_shape = _plan.lse_shape(layouts["q"])

    def learn(self, kind, out, layout, code, like):
        """The short way to an output, where a kind has one."""
        if getattr(kind, "pointer", None) is not None:
            self.out_layout = layout
            self.kind, self.make_out = kind, kind.maker(out.shape, code, like)


def _known_plan(op, key, layouts, values, tensors, scalars, like):
    options = dict(zip(_OPTIONS, values))
    options["executor"] = _threads.executor_of(_tensor.kind_of(like, "q"))
    problem, _keep = _problem.problem_from(op, layouts, options, tensors, scalars)
    declared = [(name, needs_grad) for name, _, needs_grad in tensors]
    device = layouts["q"].device
    known = _Known(_plan.create(problem, device, options, declared, scalars), layouts)
    if key is not None:
        _tensor.remember(_plans, key, known, _MAX_PLANS)
    return known


def _read_named(list_name, given):
    """[(name, pointer, Layout, owner)] of a dict of arrays."""
    return [
        (name, *_plan.read_argument(f"{list_name}[{_problem.said(name)}]", array))
        for name, array in _problem.mapping(list_name, given, "{name: array}").items()
    ]


def _check_named_devices(layouts, named):
    device = layouts["q"].device
    for name, _, layout, _ in named:
        if layout.device != device:
            raise ValueError(
                f"tensors[{_problem.said(name)}]: it is on {layout.device or 'the CPU'} and q on {device or 'the CPU'}; "
                "move all tensors to one device."
            )


def _forward(arrays, values, tensors, scalars, seed, offset, lse=None, max_logit=None):
    """arrays: as _FORWARD; values: as _OPTIONS."""
    kind = _tensor.kind_of(arrays[0], "q")
    types = tuple(map(type, values))
    if not _problem.PLAIN.issuperset(types):  # arrays may change, and plans are kept by number
        values = tuple(map(_problem.held, _OPTIONS, values))
        types = tuple(map(type, values))
    offsets = _plan._OFFSETS
    entries, keep, layouts = [], [], {}
    key = [values, types]  # 1, 1.0 and True are equal, and not all of them are allowed
    read, usual = kind.read, type(arrays[0])
    like, knows_like = arrays[0], True
    for name, array in zip(_FORWARD, arrays):
        if array is None:
            key.append(None)
            continue
        if type(array) is usual and name in _QKV:  # the short way of read_argument
            pointer, layout, owner = read(array, name)
            if not layout.is_plain:
                pointer, layout, owner = _plan.read_argument(name, array)
                if name == "q":  # outputs are made like what the plan knows, which is the copy
                    knows_like = _tensor.by_type.get(type(owner)) is kind
                    like = owner if knows_like else like
        else:
            pointer, layout, owner = _plan.read_argument(name, array, name == "out")
        entries.append((offsets[name], pointer, layout.tail))
        layouts[name] = layout
        key.append(layout)
        keep.append(owner)
    named = () if tensors is None else _read_named("tensors", tensors)
    for name, _, layout, _ in named:
        key.append((name, layout))
    names = ()
    if scalars is not None:
        scalars = _problem.mapping("scalars", scalars, "{name: number}")
        names = tuple(scalars)
        key.append(names)
    key = tuple(key)
    try:
        known = _plans.get(key)
    except TypeError:
        known, key = None, None  # an option that cannot be kept, a dict of knobs
    if known is None:
        _check_named_devices(layouts, named)
        known = _known_plan(
            "forward",
            key,
            layouts,
            values,
            [(n, at, False) for n, _, at, _ in named],
            names,
            like,
        )
    plan = known.plan
    out = arrays[3]
    result = out
    if out is None:
        make = known.make_out if knows_like else None
        if make is None or known.kind is not kind:
            out = kind.empty(known.out_shape, plan._dtype_out, like)
            pointer, layout, owner = _tensor.read(out, "out")
            if knows_like:
                known.learn(kind, out, layout, plan._dtype_out, like)
        else:
            out, layout = make(like), known.out_layout
            pointer = kind.pointer(out)
        entries.append((offsets["out"], pointer, layout.tail))
        result = kind.finish
    more = []
    for name, array, is_wanted in (
        ("lse", lse, plan._problem.needs_lse), ("max_logit", max_logit, plan._problem.needs_max_logit)
    ):  # fmt: skip
        if is_wanted or array is not None:
            made = array if array is not None else kind.empty(known.lse_shape, _FP32, like)
            pointer, layout, owner = _plan.read_argument(name, made, True)
            entries.append((offsets[name], pointer, layout.tail))
            more.append(made if array is not None else (made,))
    plan.run_entries(
        kind, like, entries,
        [(pointer, at.tail, at) for _, pointer, at, _ in named], (),
        plan._values(scalars) if scalars else (), seed, offset,
    )  # fmt: skip
    result = out if result is not kind.finish and arrays[3] is not None else kind.finish(out)
    if not more:
        return result
    return (result, *(kind.finish(one[0]) if type(one) is tuple else one for one in more))


def attention(
    q: Array, k: Array, v: Array, *, softmax_scale: Optional[float] = None, softcap: float = 0.0,
    causal: bool = False, window_left: Optional[int] = None, window_right: Optional[int] = None,
    chunk_size: int = 0, alignment: str = "bottom_right", document_q: Optional[Array] = None,
    document_k: Optional[Array] = None, mask: Optional[Array] = None,
    bias: Optional[Array] = None, alibi: Optional[Array] = None, sink: Optional[Array] = None,
    score_mod: Optional[Expression] = None, mask_mod: Optional[Expression] = None,
    tensors: Optional[Mapping[str, Array]] = None, scalars: Optional[Mapping[str, float]] = None,
    dropout_p: float = 0.0, dropout_seed: int = 0, dropout_offset: int = 0,
    cu_seqlens_q: Optional[Array] = None, cu_seqlens_k: Optional[Array] = None,
    seqlen_q: Optional[int] = None, seqlen_k: Optional[int] = None,
    seqused_q: Optional[Array] = None, seqused_k: Optional[Array] = None,
    page_table: Optional[Array] = None, out: Optional[Array] = None, lse: Optional[Array] = None,
    max_logit: Optional[Array] = None, dtype_out: Optional[str] = None, return_lse: bool = False,
    return_max_logit: bool = False, batch_invariant: bool = False,
    implementation: Optional[str] = None, isa: Optional[str] = None,
    allow_reference: bool = False, num_threads: int = 0,
    knobs: Optional[Mapping[str, Any]] = None,
) -> Union[Array, Tuple[Array, ...]]:  # fmt: skip
    """Exact attention: softmax(softmax_scale * q k^T, modified and masked) v.

    Shapes, slowest axis first, any strides (an input whose last axis is strided is copied):
      q [batch, seqlen_q, num_heads_q, head_dim]; k, v [batch, seqlen_k, num_heads_kv, head_dim(_v)]
      ragged, with cu_seqlens_q / cu_seqlens_k [batch + 1] int32: q [total_q, ...], k, v [total_k, ...]
      paged, with page_table [batch, max_pages] int32: k, v [num_pages, page_size, num_heads_kv, ...]
    num_heads_q is a multiple of num_heads_kv. fp32, bf16, fp16 or fp8_e4m3, all three alike.

    Arguments, each taking effect or refused:
      softmax_scale    None: 1/sqrt(head_dim)
      softcap          c: scores become c * tanh(score / c); 0: off
      causal, window_left, window_right, chunk_size, alignment    docs/masks.md
      document_q, document_k   [batch|1, seqlen] int32: visible where equal
      mask, bias       broadcast to [batch, num_heads_q, seqlen_q, seqlen_k]; mask: true is visible
      alibi            slopes [num_heads_q] or [batch, num_heads_q] fp32
      sink             [num_heads_q] fp32, a logit that takes weight and gives no value
      score_mod, mask_mod   an expression (docs/expressions.md) as text, or a function that is traced:
                       lambda score, b, h, q, k: score + slope[h] * (k - q)
      tensors, scalars the arrays and numbers that expressions read, by name
      dropout_p, dropout_seed, dropout_offset    weights dropped, and which
      seqlen_q, seqlen_k   longest sequence of a ragged or paged side; on the CPU found by itself
      seqused_q, seqused_k [batch] int32: how much of each sequence is real
      out, lse, max_logit  written into instead of made
      dtype_out        "fp32", ...; None: as q, bf16 for fp8
      batch_invariant  the same bits whatever else is in the batch; on the CPU always so
      implementation, isa, allow_reference, num_threads, knobs    how (docs/python.md)

    Returns out [batch, seqlen_q, num_heads_q, head_dim_v] (ragged: [total_q, ...]), an array of q's framework;
    with return_lse and return_max_logit a tuple with lse, max_logit [batch, num_heads_q, seqlen_q] fp32 (ragged:
    [num_heads_q, total_q]), natural logarithms. lse= and max_logit= ask for themselves.

    Raises ValueError for what is illegal, TypeError for what is no array or number, NotImplementedError for
    what no implementation that may run here computes. Nothing is written then.

    What is meant: docs/semantics.md; sources: [Vaswani17], [Dao22 alg. 1] of docs/references.md.
    """
    if score_mod is not None or mask_mod is not None:
        score_mod, mask_mod, tensors, scalars = _traced(score_mod, mask_mod, tensors, scalars)
    if cu_seqlens_q is not None and seqlen_q is None:
        seqlen_q = _longest("q", cu_seqlens_q, q)
    if cu_seqlens_k is not None and seqlen_k is None:
        seqlen_k = _longest("k", cu_seqlens_k, k)
    arrays = (
        q, k, v, out, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, page_table,
        document_q, document_k, mask, bias, alibi, sink,
    )  # fmt: skip
    values = (
        softmax_scale, softcap, causal, window_left, window_right, chunk_size, alignment, dropout_p,
        seqlen_q, seqlen_k, score_mod, mask_mod, True, batch_invariant, dtype_out,
        True if lse is not None else return_lse, True if max_logit is not None else return_max_logit, False, False,
        implementation, isa, allow_reference, num_threads, knobs,
    )  # fmt: skip
    return _forward(arrays, values, tensors, scalars, dropout_seed, dropout_offset, lse, max_logit)


def attention_varlen(
    q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, *,
    seqlen_q: Optional[int] = None, seqlen_k: Optional[int] = None, **options: Any
) -> Union[Array, Tuple[Array, ...]]:  # fmt: skip
    """Attention over sequences that lie one after another.

    q [total_q, num_heads_q, head_dim]; k, v [total_k, num_heads_kv, head_dim(_v)]; cu_seqlens_q, cu_seqlens_k
    [batch + 1] int32, where sequences start, from 0 to the total. seqlen_q, seqlen_k: the longest sequence or
    more; on the CPU they are found, on a GPU, whose memory is not looked at, they must be given. Everything
    else as in sirdar.attention. Returns out [total_q, num_heads_q, head_dim_v], lse [num_heads_q, total_q]. Raises as
    sirdar.attention does, and ValueError for offsets that do not fit the rows.
    """
    return attention(
        q,
        k,
        v,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        **options,
    )


def decode(
    q: Array, k: Array, v: Array, *, causal: bool = True, **options: Any
) -> Union[Array, Tuple[Array, ...]]:  # fmt: skip
    """Attention of few new queries over a cache: sirdar.attention, causal by default.

    q [batch, num_heads_q, head_dim] for one new query each, or [batch, seqlen_q, num_heads_q, head_dim]; k, v the
    cache [batch, seqlen_k, num_heads_kv, head_dim(_v)] with seqused_k [batch] int32, the keys that are real, the
    new ones included; or pages of it, [num_pages, page_size, ...], with page_table too. Returns out in q's shape;
    for one new query each, lse and max_logit are [batch, num_heads_q], whether returned or given. Raises as
    sirdar.attention does; source of the pages: [Kwon23] of docs/references.md.
    """
    if _rank("q", q) != 3 or options.get("cu_seqlens_q") is not None:
        return attention(q, k, v, causal=causal, **options)
    for name, shape, at in (
        ("out", "[batch, num_heads_q, head_dim_v]", (slice(None), None)),
        ("lse", "[batch, num_heads_q]", (..., None)),
        ("max_logit", "[batch, num_heads_q]", (..., None)),
    ):
        given = options.get(name)
        # lse and max_logit may have the axis of the one query.
        if given is not None and (name == "out" or _rank(name, given) == 2):
            options[name] = _indexed(name, given, at, 3 if name == "out" else 2, shape)
    q = _indexed("q", q, (slice(None), None), 3, "[batch, num_heads_q, head_dim]")
    results = attention(q, k, v, causal=causal, **options)
    if isinstance(results, tuple):
        return (results[0][:, 0], *(one[..., 0] for one in results[1:]))
    return results[:, 0]


def _rank(name, array):
    return 0 if array is None else len(_tensor.read(array, name)[1].shape)


def _indexed(name, array, at, rank, shape):
    """array[at], with the axis of the one query of a decoding step."""
    found = _tensor.read(array, name)[1].shape
    if len(found) != rank:
        raise ValueError(f"{name}: shape {list(found)} does not fit; it must be {shape}, as q.")
    try:
        return array[at]
    except TypeError:
        raise TypeError(
            f"{name}: {type(array).__name__} takes no index; pass it with an axis of one query."
        ) from None


def _longest(side, cu_seqlens, rows):
    """The longest sequence of host cu_seqlens. Where they are wrong the library says so: it is then
    given the length that no rule forbids."""
    name = f"cu_seqlens_{side}"
    pointer, layout, _owner = _tensor.read(cu_seqlens, name)
    if layout.device:
        raise ValueError(
            f"seqlen_{side}: it is missing; the sequences are on a GPU, so pass their longest length."
        )
    if layout.code != _abi.DTYPES["int32"]:
        found = _abi.DTYPE_NAMES[layout.code]
        raise ValueError(f"{name}: dtype {found} does not fit; it must be int32.")
    _problem.needs_rank(name, layout, 1, "[batch + 1]")
    count, step = layout.shape[0], layout.strides[0]
    if step == 1 or count <= 1:
        starts = list((ctypes.c_int32 * count).from_address(pointer)) if count else []
    else:
        starts = [ctypes.c_int32.from_address(pointer + i * step * 4).value for i in range(count)]
    lengths = [after - before for before, after in zip(starts, starts[1:])]
    shape = () if rows is None else _tensor.read(rows, side)[1].shape
    total = shape[0] if shape else 0
    is_right = starts and starts[0] == 0 and starts[-1] == total and min(lengths, default=0) >= 0
    return max(lengths, default=0) if is_right else total


def _traced(score_mod, mask_mod, tensors, scalars):
    """The functions among them as texts, with what they reach added to tensors."""
    for name, given in (("score_mod", score_mod), ("mask_mod", mask_mod)):
        if isinstance(given, str) and not given:
            raise ValueError(f"{name}: it is an empty text; write an expression, or leave it out.")
    if type(score_mod) in _TEXTS and type(mask_mod) in _TEXTS:
        return score_mod, mask_mod, tensors, scalars
    from . import _trace

    tensors = _problem.mapping("tensors", tensors, "{name: array}")
    scalars = _problem.mapping("scalars", scalars, "{name: number}")
    return _trace.traced(score_mod, mask_mod, tensors, scalars)


_TEXTS = (str, type(None))


def backward(
    dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, *,
    dlse: Optional[Array] = None, softmax_scale: Optional[float] = None, softcap: float = 0.0,
    causal: bool = False, window_left: Optional[int] = None, window_right: Optional[int] = None,
    chunk_size: int = 0, alignment: str = "bottom_right", document_q: Optional[Array] = None,
    document_k: Optional[Array] = None, mask: Optional[Array] = None,
    bias: Optional[Array] = None, alibi: Optional[Array] = None, sink: Optional[Array] = None,
    score_mod: Optional[Expression] = None, mask_mod: Optional[Expression] = None,
    tensors: Optional[Mapping[str, Array]] = None, scalars: Optional[Mapping[str, float]] = None,
    dropout_p: float = 0.0, dropout_seed: int = 0, dropout_offset: int = 0,
    cu_seqlens_q: Optional[Array] = None, cu_seqlens_k: Optional[Array] = None,
    seqlen_q: Optional[int] = None, seqlen_k: Optional[int] = None,
    seqused_q: Optional[Array] = None, seqused_k: Optional[Array] = None,
    needs_dbias: bool = False, needs_dsink: bool = False,
    needs_dtensors: Union[str, Sequence[str]] = (), dq: Optional[Array] = None,
    dk: Optional[Array] = None, dv: Optional[Array] = None, deterministic: bool = True,
    batch_invariant: bool = False, implementation: Optional[str] = None,
    isa: Optional[str] = None, allow_reference: bool = False, num_threads: int = 0,
    knobs: Optional[Mapping[str, Any]] = None,
) -> Gradients:  # fmt: skip
    """Gradients of sirdar.attention, called with the same arguments.

    dout, like out: the gradient that comes in; out, lse: what the forward pass returned (with return_lse=True);
    dlse, like lse, fp32: a gradient of lse. needs_dbias, needs_dsink and needs_dtensors (names of fp32 tensors
    that the expressions read) ask for more gradients. dq, dk, dv: written into instead of made.

    Returns Gradients(dq, dk, dv, dbias, dsink, dtensors). Raises as sirdar.attention does. Source: [Dao22 alg. 4]
    of docs/references.md.
    """
    if score_mod is not None or mask_mod is not None:
        score_mod, mask_mod, tensors, scalars = _traced(score_mod, mask_mod, tensors, scalars)
    if cu_seqlens_q is not None and seqlen_q is None:
        seqlen_q = _longest("q", cu_seqlens_q, q)
    if cu_seqlens_k is not None and seqlen_k is None:
        seqlen_k = _longest("k", cu_seqlens_k, k)
    given = dict(
        q=q, k=k, v=v, out=out, lse=lse, dout=dout, dlse=dlse,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q, seqused_k=seqused_k,
        document_q=document_q, document_k=document_k, mask=mask, bias=bias, alibi=alibi, sink=sink,
    )  # fmt: skip
    for name in ("q", "k", "v", "out", "lse", "dout"):
        if given[name] is None:
            raise TypeError(f"{name}: it is None; the backward pass reads it, so pass it.")
    given = {name: array for name, array in given.items() if array is not None}
    values = (
        softmax_scale, softcap, causal, window_left, window_right, chunk_size, alignment, dropout_p,
        seqlen_q, seqlen_k, score_mod, mask_mod, deterministic, batch_invariant, None,
        False, False, needs_dbias, needs_dsink,
        implementation, isa, allow_reference, num_threads, knobs,
    )  # fmt: skip
    needs_dtensors = _names("needs_dtensors", needs_dtensors)
    scalars = _problem.mapping("scalars", scalars, "{name: number}")
    results = {"dq": dq, "dk": dk, "dv": dv}
    _backward(
        given, results, values, tensors, scalars, needs_dtensors, dropout_seed, dropout_offset
    )
    return Gradients(**results)


def _names(name, given):
    """A name, or a list of them, as a tuple."""
    given = (given,) if isinstance(given, str) else given
    if not isinstance(given, (tuple, list, set, frozenset)) or any(
        not isinstance(one, str) for one in given
    ):
        raise TypeError(f"{name}: {_problem.said(given)} is no list of names; pass those of tensors, as texts.")
    return tuple(given)


def _backward(given, results, values, tensors, scalars, needs_dtensors, seed, offset):
    """given: the arrays that are read, by name; results: gradients that are written into, or None; what is
    made is added to them."""
    kind, like = _tensor.kind_of(given["q"], "q"), given["q"]
    types = tuple(map(type, values))
    if not _problem.PLAIN.issuperset(types):  # arrays may change, and plans are kept by number
        values = tuple(map(_problem.held, _OPTIONS, values))
        types = tuple(map(type, values))
    offsets = _plan._OFFSETS
    entries, keep, layouts = [], [], {}
    for name, array in given.items():
        pointer, layout, owner = _plan.read_argument(name, array)
        entries.append((offsets[name], pointer, layout.tail))
        layouts[name] = layout
        keep.append(owner)
    named = () if tensors is None else _read_named("tensors", tensors)
    for name in needs_dtensors:
        if name not in (tensors or {}):
            raise ValueError(f"needs_dtensors: {_problem.said(name)} is none of tensors; give its array there.")
    declared = tuple((name, layout, name in needs_dtensors) for name, _, layout, _ in named)
    key = ("backward", values, types, tuple(layouts.items()), declared, tuple(scalars))
    try:
        known = _plans.get(key)
    except TypeError:
        known, key = None, None
    if known is None:
        _check_named_devices(layouts, named)
        known = _known_plan("backward", key, layouts, values, declared, tuple(scalars), like)
    plan, problem = known.plan, known.plan._problem
    made = []
    for name, source in (("dq", "q"), ("dk", "k"), ("dv", "v")):
        if results[name] is None:
            made.append((name, layouts[source].shape, layouts[source].code))
        else:
            pointer, layout, owner = _plan.read_argument(name, results[name], True)
            plan._refuse_devices({name: layout})
            entries.append((offsets[name], pointer, layout.tail))
    for name, is_wanted in (("bias", problem.needs_dbias), ("sink", problem.needs_dsink)):
        if is_wanted and name not in given:
            raise ValueError(f"{name}: it is missing; pass it.")
        if is_wanted:
            made.append(("d" + name, layouts[name].shape, _FP32))
    for name, shape, code in made:
        results[name] = kind.empty(shape, code, like)
        pointer, layout, owner = _tensor.read(results[name], name)
        entries.append((offsets[name], pointer, layout.tail))
    gradients, named_out = {}, []
    for name, _, layout, _ in named:
        if name in needs_dtensors:
            gradients[name] = kind.empty(layout.shape, _FP32, like)
            pointer, at, owner = _tensor.read(gradients[name], name)
            named_out.append((pointer, at.tail, at))
    plan.run_entries(
        kind, like, entries, [(pointer, at.tail, at) for _, pointer, at, _ in named], named_out,
        plan._values(scalars) if scalars else (), seed, offset,
    )  # fmt: skip
    for name, _, _ in made:
        results[name] = kind.finish(results[name])
    if gradients:
        results["dtensors"] = {name: kind.finish(array) for name, array in gradients.items()}


def merge(
    out_a: Array, lse_a: Array, out_b: Array, lse_b: Array, *, out: Optional[Array] = None,
    lse: Optional[Array] = None,
) -> Tuple[Array, Array]:  # fmt: skip
    """Merges two partial results over disjoint keys of the same queries into (out, lse).

    out_a, out_b [batch, seqlen_q, num_heads_q, head_dim_v] or ragged [total_q, ...]; lse_a, lse_b fp32 as
    sirdar.attention returns them. (0, -inf) is the identity, bit for bit. On the CPU, or torch tensors anywhere:
    NotImplementedError for others. ValueError for shapes or dtypes that do not fit. Source: [Milakov18] of
    docs/references.md.
    """
    arguments = dict(out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b)
    kind = _tensor.kind_of(out_a, "out_a")
    if getattr(out_a, "is_cuda", False) is True and hasattr(kind, "torch"):
        return _merge_on_gpu(kind.torch, arguments, out, lse)
    args, keep = _abi.made(_abi.MergeArgs), []

    def put(name, array, is_output=False):
        pointer, layout, owner = _plan.read_argument(name, array, is_output)
        if layout.device:
            raise NotImplementedError(
                f"{name}: it is on {layout.device} and merge runs on the CPU; move it there."
            )
        keep.append(owner)
        ctypes.memmove(
            ctypes.addressof(args) + getattr(_abi.MergeArgs, name).offset,
            _plan.pack_tensor(pointer, layout.tail),
            80,
        )
        return layout

    layouts = {name: put(name, array) for name, array in arguments.items()}
    if layouts["out_b"].code != layouts["out_a"].code:
        dtypes = (_abi.DTYPE_NAMES[layouts[name].code] for name in ("out_b", "out_a"))
        raise ValueError("out_b: dtype {} differs from out_a's {}; convert one.".format(*dtypes))
    made = []
    for name, array, like in (("out", out, "out_a"), ("lse", lse, "lse_a")):
        made.append(
            kind.empty(layouts[like].shape, layouts[like].code, out_a) if array is None else array
        )
        put(name, made[-1], True)
    _abi.check(_abi.library().sirdar_merge(ctypes.addressof(args)))
    return (
        kind.finish(made[0]) if out is None else out,
        kind.finish(made[1]) if lse is None else lse,
    )


def _merge_on_gpu(torch, arguments, out, lse):
    from . import torch as with_torch

    for name, array in (*arguments.items(), ("out", out), ("lse", lse)):
        if array is not None:
            _plan.read_argument(name, array, name in ("out", "lse"))
    made = with_torch.merge(**arguments)
    for name, array, one in zip(("out", "lse"), (out, lse), made):
        if array is not None and (array.shape != one.shape or array.dtype != one.dtype):
            raise ValueError(
                f"{name}: is {array.dtype} of shape {tuple(array.shape)}; {one.dtype} of shape "
                f"{tuple(one.shape)} is needed."
            )
    return tuple(one if array is None else array.copy_(one) for array, one in zip((out, lse), made))


def plan(
    problem: Union[str, Array, None] = None, k: Optional[Array] = None, v: Optional[Array] = None, *,
    device: Optional[str] = None, **options: Any
) -> _plan.Plan:  # fmt: skip
    """A sirdar.Plan: how a problem will be computed.

    plan("fwd b2 sq4096 sk4096 hq32 hkv8 d128 bf16 causal", device="cuda")    of a problem string
    plan(q, k, v, causal=True)                 of the call sirdar.attention(q, k, v, causal=True); also q=q

    device: "cpu" (the default), "cuda", "cuda:1", or a recorded machine to plan for, "h200"; with arrays it is
    theirs. implementation, isa, allow_reference, num_threads and knobs as in sirdar.attention. Raises
    NotImplementedError, with every implementation's reason, where nothing may compute the problem.
    """
    defaults = dict(_problem.OPTIONS)
    if "q" in options and problem is not None:
        raise TypeError("q: it is given twice, by place and by name; leave one out.")
    problem = options.pop("q", None) if problem is None else problem
    if device is not None and not isinstance(device, str):
        raise TypeError(f"device: {_problem.said(device)} is no text; pass \"cpu\", \"cuda\" or \"cuda:1\".")
    if isinstance(problem, str):
        if k is not None or v is not None:
            raise TypeError("k, v: a problem string says it itself; leave them out.")
        allowed = ("implementation", "isa", "allow_reference", "num_threads", "knobs")
        for name in options:
            if name not in allowed:
                raise TypeError(
                    f"{_problem.shortened(name)}: a problem string says it itself; beside it go {', '.join(allowed)}."
                )
        name = {None: "", "cpu": "", "host": "", "cuda": "cuda:0"}.get(device, device)
        return _plan.create_from_text(problem, name, {**defaults, **options})
    if device is not None:
        raise TypeError("device: the arrays tell it; leave it out.")
    tensors, scalars = options.pop("tensors", None), options.pop("scalars", None)
    score_mod, mask_mod, tensors, scalars = _traced(
        options.get("score_mod"), options.get("mask_mod"), tensors, scalars
    )
    options.update(score_mod=score_mod, mask_mod=mask_mod)
    arrays = {"q": problem, "k": k, "v": v}
    for name in _FORWARD[3:]:
        if options.get(name) is not None:
            arrays[name] = options.pop(name)
    for name in options:
        if name not in defaults and name not in _FORWARD:
            raise TypeError(f"{_problem.shortened(name)}: it is no argument of plan; docs/python.md lists them.")
    options = {**defaults, **{name: value for name, value in options.items() if name in defaults}}
    for side in ("q", "k"):
        if f"cu_seqlens_{side}" in arrays and options[f"seqlen_{side}"] is None:
            options[f"seqlen_{side}"] = _longest(side, arrays[f"cu_seqlens_{side}"], arrays[side])
    layouts = {
        name: _plan.read_argument(name, array, name == "out")[1] for name, array in arrays.items()
    }
    named = [] if tensors is None else _read_named("tensors", tensors)
    declared = [(name, layout, False) for name, _, layout, _ in named]
    made = _known_plan(
        "forward",
        None,
        layouts,
        tuple(options[n] for n in _OPTIONS),
        declared,
        tuple(_problem.mapping("scalars", scalars, "{name: number}")),
        problem,
    ).plan
    _check_fit(layouts)
    return made


def _check_fit(layouts):
    """What a call would refuse: K and V that are not those of one problem with q, masks of other sizes."""
    q, k, v = (layouts[name] for name in ("q", "k", "v"))
    if v.code != k.code:
        names = _abi.DTYPE_NAMES
        raise ValueError(
            f"v: dtype {names[v.code]} does not fit; it must be {names[k.code]}, as k; convert it."
        )
    if v.shape[:-1] != k.shape[:-1]:
        raise ValueError(
            f"v: shape {list(v.shape)} does not fit; all but its last axis must be as k's {list(k.shape)}."
        )
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"k: shape {list(k.shape)} does not fit; its last axis must be {q.shape[-1]}, as q's."
        )
    if len(q.shape) != 4 or len(k.shape) != 4 or "page_table" in layouts:
        return
    if k.shape[0] != q.shape[0]:
        raise ValueError(
            f"k: shape {list(k.shape)} does not fit; its first axis must be {q.shape[0]}, as q's."
        )
    sizes = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    for name in ("mask", "bias"):
        if name in layouts and any(a not in (1, b) for a, b in zip(layouts[name].shape, sizes)):
            raise ValueError(
                f"{name}: shape {list(layouts[name].shape)} does not fit; what broadcasts to {list(sizes)} is needed."
            )


def explain(
    problem: Union[str, Array, None] = None, k: Optional[Array] = None, v: Optional[Array] = None, **options: Any
) -> str:
    """The plan as text: implementation, configuration, memory, FLOPs, and why others refused. Arguments of plan()."""
    return plan(problem, k, v, **options).explain()
