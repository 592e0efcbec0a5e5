"""Plan: a problem with the way it will be computed; made once, called many times, from any thread."""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import Any, Optional

from . import _abi, _problem, _tensor

_OFFSETS = {
    name: getattr(_abi.Args, name).offset
    for name in _abi.TENSORS_BEFORE_BACKWARD + _abi.TENSORS_OF_BACKWARD
}
_Q, _K, _V, _OUT = (_OFFSETS[name] for name in ("q", "k", "v", "out"))
_FOUR = struct.Struct("=" + f"Q{ctypes.sizeof(_abi.Tensor) - 8}s" * 4)
_DROPOUT = struct.Struct("=QQ")
_DROPOUT_OFFSET = _abi.Args.dropout_seed.offset
_WORKSPACE = struct.Struct("=QQ")
_WORKSPACE_OFFSET = _abi.Args.workspace.offset
_NAMED = struct.Struct(f"=Q{ctypes.sizeof(_abi.Tensor) - 8}s")
_ABSENT = bytes(ctypes.sizeof(_abi.Tensor))
_KEPT_WORKSPACE = 64 << 20  # a thread keeps a workspace up to this size for its next call
_local = threading.local()
_kinds = _tensor.by_type
_NOTHING_READY = (lambda *arrays: None, *[None] * 6)  # match, kind, make, and four tails


def _host_workspace(size):
    """(address, owner, bytes) of 64-byte aligned memory of this thread's."""
    try:
        kept = _local.workspace
        if kept[2] >= size:
            return kept
    except AttributeError:
        pass
    owner = bytearray((size if size > _KEPT_WORKSPACE else max(size, 1 << 16)) + 63)
    start = ctypes.addressof(ctypes.c_char.from_buffer(owner))
    made = (start + 63 & ~63, owner, len(owner) - 63)
    if size <= _KEPT_WORKSPACE:
        _local.workspace = made
    return made


class _Slot:
    """The C struct of one call at a time; a plan keeps those that are not in use."""

    __slots__ = ("address", "args", "buffer", "dtensors", "scalars", "tensors", "workspace")

    def __init__(self, plan):
        self.buffer = bytearray(bytes(_abi.made(_abi.Args)))
        self.args = _abi.Args.from_buffer(self.buffer)
        self.address = ctypes.addressof(self.args)
        self.workspace = 0
        self.tensors = self._names(_abi.NamedTensor, plan._tensors, "tensors")
        self.dtensors = self._names(_abi.NamedTensor, plan._dtensors, "dtensors")
        self.scalars = self._names(_abi.NamedValue, plan._scalars, "scalars")

    def put_workspace(self, address, size):
        _WORKSPACE.pack_into(self.buffer, _WORKSPACE_OFFSET, address, size)
        self.workspace = address

    def _names(self, kind, names, field):
        if not names:
            return None
        listed = (kind * len(names))(*((name.encode(),) for name in names))
        setattr(self.args, field, listed)
        setattr(self.args, f"num_{field}", len(names))
        return listed


class Plan:
    """How a problem will be computed: implementation, configuration, workspace.

    Made by sirdar.plan(). Calling it computes: plan(q, k, v) for a forward problem, plan.run(...) for any.
    May be called from several threads at once.
    """

    __slots__ = (
        "__weakref__", "_device", "_dtensors", "_dtype_out", "_handle", "_library", "_name", "_problem",
        "_ready", "_ready_out", "_run", "_scalars", "_slots", "_tensors", "_workspace_bytes",
    )  # fmt: skip

    def __init__(self, handle, problem, device, tensors, scalars):
        self._library = _abi.library()
        self._run = self._library.sirdar_run
        self._handle, self._problem, self._device = handle, problem, device
        self._tensors = tuple(name for name, _ in tensors)
        self._dtensors = tuple(name for name, needs_grad in tensors if needs_grad)
        self._scalars = tuple(scalars)
        self._slots = []
        self._ready = self._ready_out = _NOTHING_READY
        size = ctypes.c_size_t()
        _abi.check(self._library.sirdar_plan_workspace_bytes(handle, ctypes.addressof(size)))
        self._workspace_bytes = size.value
        self._name = self._library.sirdar_plan_name(handle).decode()
        self._dtype_out = problem.dtype_out
        if self._dtype_out == _abi.DTYPE_DEFAULT:
            is_fp8 = problem.dtype_q in (_abi.DTYPES["fp8_e4m3"], _abi.DTYPES["fp8_e5m2"])
            self._dtype_out = _abi.DTYPES["bf16"] if is_fp8 else problem.dtype_q

    def __del__(self):
        handle = getattr(self, "_handle", None)
        if handle:
            self._library.sirdar_plan_destroy(handle)

    def __copy__(self):
        return self  # nothing about a plan changes

    def __deepcopy__(self, known):
        return self

    def __reduce__(self):
        raise TypeError(
            "plan: it lives in this process's memory and cannot be pickled; make it again with sirdar.plan()."
        )

    def __repr__(self):
        return f"<sirdar.Plan {self._name} on {self.device}>"

    @property
    def name(self) -> str:
        """The chosen implementation, "cpu.forward"."""
        return self._name

    @property
    def device(self) -> str:
        """Where it runs: "cpu", or "cuda:1"."""
        return self._device or "cpu"

    @property
    def workspace_bytes(self) -> int:
        """Extra memory of one call, in bytes; it is found by the call itself."""
        return self._workspace_bytes

    def explain(self) -> str:
        """The whole decision as text: implementation, configuration, memory, refusals."""
        return _abi.text_of(self._library.sirdar_plan_explain, self._handle)

    def prepare(self) -> Plan:
        """Compiles and loads what a call needs, so that the first is as fast as the others."""
        _abi.check(self._library.sirdar_plan_prepare(self._handle))
        return self

    def __call__(self, q: Any, k: Any, v: Any, *, out: Optional[Any] = None, **more: Any) -> Any:
        """The forward pass: plan(q, k, v) -> out, or (out, lse), (out, lse, max_logit) if the plan has them.

        more: what else the plan's problem reads, as in sirdar.attention: mask, bias, sink, cu_seqlens_q,
        tensors={...}, scalars={...}, dropout_seed, ...; and lse, max_logit to be written into.
        """
        if more:
            return self._forward(dict(q=q, k=k, v=v, out=out), more)
        # The shortest way there is, for arrays in layouts that were computed with before.
        if out is None:
            match, kind, make, tail_q, tail_k, tail_v, tail = self._ready
            found = match(q, k, v)
            if found is None:
                return self._learn(q, k, v, out)
            out = make(q)
            pointer_q, pointer_k, pointer_v, pointer = *found, kind.pointer(out)
        else:
            match, kind, make, tail_q, tail_k, tail_v, tail = self._ready_out
            found = match(q, k, v, out)
            if found is None:
                return self._learn(q, k, v, out)
            pointer_q, pointer_k, pointer_v, pointer = found
        try:
            slot = self._slots.pop()
        except IndexError:
            slot = _Slot(self)
        # q, k, v and out are neighbours in the struct.
        _FOUR.pack_into(
            slot.buffer, _Q, pointer_q, tail_q, pointer_k, tail_k, pointer_v, tail_v, pointer, tail
        )
        size = self._workspace_bytes
        if size:
            workspace = self._workspace(kind, q) if self._device else _host_workspace(size)
            if workspace[0] != slot.workspace:
                slot.put_workspace(workspace[0], size)
        status = self._run(self._handle, slot.address, kind.stream(q) if self._device else None)
        self._slots.append(slot)
        if status:
            _abi.check(status)
        return out

    def _learn(self, q, k, v, out):
        """A call whose layouts are kept, if it succeeds, for the short way of the next."""
        result = self._forward(dict(q=q, k=k, v=v, out=out), {})
        kind, problem = _kinds.get(type(q)), self._problem
        if kind is None or problem.needs_lse or problem.needs_max_logit:
            return result
        if not type(q) is type(k) is type(v) or not (out is None or type(out) is type(q)):
            return result
        layouts = [kind.read(array, "q")[1] for array in (q, k, v)]
        if not all(layout.is_plain for layout in layouts):
            return result
        tails = [layout.tail for layout in layouts]
        if out is not None:
            match, tail = kind.matcher(q, k, v, out), kind.read(out, "out")[1].tail
            if match is not None:
                self._ready_out = (match, kind, None, *tails, tail)
            return result
        match = kind.matcher(q, k, v)
        if match is not None:
            make = kind.maker(result.shape, self._dtype_out, q)
            self._ready = (match, kind, make, *tails, kind.read(make(q), "out")[1].tail)
        return result

    def _workspace(self, kind, like):
        if not self._device:
            return _host_workspace(self._workspace_bytes)
        memory = kind.empty((self._workspace_bytes,), _abi.DTYPES["boolean"], like)
        if getattr(kind, "pointer", None) is not None:
            return kind.pointer(memory), memory
        pointer, _, owner = _tensor.read(memory, "workspace")
        return pointer, owner

    def _refuse_devices(self, layouts):
        for name, layout in layouts.items():
            if layout.device != self._device:
                where = layout.device or "the CPU"
                raise ValueError(
                    f"{name}: it is on {where} and the plan is for {self.device}; move it there."
                )

    def _forward(self, arrays, more):
        if self._problem.op != _abi.OPS["forward"]:
            raise ValueError(
                "plan: it is for the backward pass; call its run() with dout, q, k, v, out and lse."
            )
        results = self.run(**arrays, **more)
        names = ["out"]
        names += ["lse"] if self._problem.needs_lse else []
        names += ["max_logit"] if self._problem.needs_max_logit else []
        return results["out"] if len(names) == 1 else tuple(results[name] for name in names)

    def run(
        self,
        *,
        tensors=None,
        scalars=None,
        dtensors=None,
        dropout_seed=0,
        dropout_offset=0,
        **arrays,
    ):
        """Computes, with every array under its name in the C struct; returns the outputs by name.

        Outputs that are not given (out, lse, max_logit; dq, dk, dv, dbias, dsink, dtensors) are made by the
        framework of q.
        """
        inputs, layouts, keep, results = {}, {}, [], {}
        for name, array in arrays.items():
            if name not in _OFFSETS:
                raise TypeError(
                    f"{_problem.shortened(name)}: a plan has no such argument; arguments are {', '.join(_OFFSETS)}."
                )
            if array is not None:
                inputs[name] = array
        for name in ("q", "k", "v"):
            if name not in inputs:
                raise TypeError(f"{name}: it is missing; pass it.")
        outputs = self._outputs(inputs)
        kind = _tensor.kind_of(inputs["q"], "q")
        entries = []
        for name, array in inputs.items():
            entry = read_argument(name, array, name in outputs)
            entries.append((_OFFSETS[name], entry[0], entry[1].tail))
            layouts[name] = entry[1]
            keep.append(entry[2])
            if name in outputs:
                results[name] = array
        self._refuse_devices(layouts)
        for name, like in outputs.items():
            if name not in inputs:
                results[name] = kind.empty(*like(layouts), inputs["q"])
                pointer, layout, owner = _tensor.read(results[name], name)
                entries.append((_OFFSETS[name], pointer, layout.tail))
        named = self._named(self._tensors, tensors, "tensors", keep)
        gradients = _problem.mapping("dtensors", dtensors, "{name: array}")
        for name in self._dtensors:
            if name not in gradients:
                at = self._tensors.index(name)
                gradients[name] = kind.empty(named[at][2].shape, _abi.DTYPES["fp32"], inputs["q"])
        named_out = self._named(self._dtensors, gradients, "dtensors", keep, is_output=True)
        self.run_entries(
            kind,
            inputs["q"],
            entries,
            named,
            named_out,
            self._values(scalars),
            dropout_seed,
            dropout_offset,
        )
        if self._dtensors:
            results["dtensors"] = {
                name: kind.finish(gradient) for name, gradient in gradients.items()
            }
        return {name: result if name in inputs or name == "dtensors" else kind.finish(result)
                for name, result in results.items()}  # fmt: skip

    def _outputs(self, inputs):
        """name -> function of the layouts that gives (shape, dtype) of an output that must be made."""
        fp32 = _abi.DTYPES["fp32"]
        problem = self._problem
        if problem.op == _abi.OPS["forward"]:
            outputs = {
                "out": lambda at: ((*at["q"].shape[:-1], at["v"].shape[-1]), self._dtype_out)
            }
            if problem.needs_lse:
                outputs["lse"] = lambda at: (lse_shape(at["q"]), fp32)
            if problem.needs_max_logit:
                outputs["max_logit"] = lambda at: (lse_shape(at["q"]), fp32)
            return outputs
        outputs = {
            "d" + name: lambda at, name=name: (at[name].shape, at[name].code)
            for name in ("q", "k", "v")
        }
        for name in ("bias", "sink"):
            if getattr(problem, f"needs_d{name}"):
                if name not in inputs:
                    raise ValueError(f"{name}: it is missing; pass it.")
                outputs["d" + name] = lambda at, name=name: (at[name].shape, fp32)
        return outputs

    def _named(self, names, given, list_name, keep, is_output=False):
        """[(pointer, tail, Layout)] in the order of the plan's names."""
        given = _problem.mapping(list_name, given, "{name: array}")
        entries = []
        for name in names:
            if name not in given:
                raise ValueError(f"{list_name}: {_problem.said(name)} is missing; pass it.")
            pointer, layout, owner = read_argument(
                f"{list_name}[{_problem.said(name)}]", given.pop(name), is_output
            )
            if layout.device != self._device:
                self._refuse_devices({f"{list_name}[{_problem.said(name)}]": layout})
            entries.append((pointer, layout.tail, layout))
            keep.append(owner)
        for name in given:
            raise ValueError(
                f"{list_name}: {_problem.said(name)} is given although the problem does not list it; use one of "
                f"[{', '.join(names)}]."
            )
        return entries

    def _values(self, given):
        given = _problem.mapping("scalars", given, "{name: number}")
        values = []
        for name in self._scalars:
            if name not in given:
                raise ValueError(f"scalars: {_problem.said(name)} is missing; pass it.")
            values.append(_problem.real(f"scalars[{_problem.said(name)}]", given.pop(name)))
        for name in given:
            raise ValueError(
                f"scalars: {_problem.said(name)} is given although the problem does not list it; leave it out."
            )
        return values

    def run_entries(
        self, kind, like, entries, named=(), named_out=(), scalars=(), seed=0, offset=0
    ):
        """entries: (offset in the struct, pointer, tail of the Layout)."""
        try:
            slot = self._slots.pop()
        except IndexError:
            slot = _Slot(self)
        buffer, pack = slot.buffer, _NAMED.pack_into
        for at, pointer, tail in entries:
            pack(buffer, at, pointer, tail)
        for listed, values in ((slot.tensors, named), (slot.dtensors, named_out)):
            for entry, (pointer, tail, _) in zip(listed or (), values):
                ctypes.memmove(
                    ctypes.addressof(entry) + _abi.NamedTensor.tensor.offset,
                    pack_tensor(pointer, tail),
                    80,
                )
        for entry, value in zip(slot.scalars or (), scalars):
            entry.value = value
        has_dropout = type(seed) is not int or type(offset) is not int or seed or offset
        if has_dropout:
            _DROPOUT.pack_into(
                buffer,
                _DROPOUT_OFFSET,
                unsigned("dropout_seed", seed),
                unsigned("dropout_offset", offset),
            )
        workspace = None
        if self._workspace_bytes:
            workspace = self._workspace(kind, like)
            slot.put_workspace(workspace[0], self._workspace_bytes)
        status = self._run(self._handle, slot.address, kind.stream(like) if self._device else None)
        # What the next call does not bring must be absent there.
        for at, _, _ in entries:
            buffer[at : at + 80] = _ABSENT
        if has_dropout:
            _DROPOUT.pack_into(buffer, _DROPOUT_OFFSET, 0, 0)
        self._slots.append(slot)
        if status:
            _abi.check(status)


def pack_tensor(pointer, tail):
    return _NAMED.pack(pointer, tail)


def unsigned(name, value):
    number = value if type(value) is int else _problem.integer(name, value)
    if not 0 <= number < 2**64:
        raise ValueError(f"{name}: {_problem.said(number)} is not from 0 to 2^64 - 1.")
    return number


def lse_shape(q):
    """[batch, num_heads_q, seqlen_q] of a dense q, [num_heads_q, total_q] of a ragged one."""
    if len(q.shape) == 4:
        return (q.shape[0], q.shape[2], q.shape[1])
    return (q.shape[1], q.shape[0])


_NEEDS_UNIT_STRIDE = frozenset(("q", "k", "v", "dout", "out_a", "out_b"))
_MAY_BROADCAST = frozenset(("mask", "bias"))
_padded = {}


def read_argument(name, array, is_output=False):
    """As _tensor.read, in the form that the C interface asks for: inputs whose last axis is strided are
    copied, masks and biases of a lower rank get leading axes of size 1."""
    kind = _tensor.kind_of(array, name)
    if is_output:
        kind.check_writable(array, name)
    pointer, layout, owner = kind.read(array, name)
    if not layout.is_plain and not is_output and (name in _NEEDS_UNIT_STRIDE or name == "out"):
        return kind.read(kind.contiguous(array), name)
    if name in _MAY_BROADCAST and len(layout.shape) < _abi.MAX_RANK:
        wide = _padded.get(layout)
        if wide is None:
            spare = _abi.MAX_RANK - len(layout.shape)
            shape, strides = (1,) * spare + layout.shape, (0,) * spare + layout.strides
            wide = _tensor.remember(
                _padded, layout, _tensor.Layout(layout.code, shape, strides, layout.device)
            )
        layout = wide
    return pointer, layout, owner


def create(problem, device, options, tensors=(), scalars=()):
    """A Plan of a struct. tensors: (name, needs_grad) each."""
    library = _abi.library()
    c_options, _keep = _problem.plan_options_from(options, device)
    handle = ctypes.c_void_p()
    status = library.sirdar_plan_create(
        ctypes.addressof(problem), ctypes.addressof(c_options), ctypes.addressof(handle)
    )
    is_of_out = options.get("dtype_out") is None
    _abi.check(status, _abi.OF_ARRAYS + (_abi.OF_OUT if is_of_out else ()))
    return Plan(handle.value, problem, device, tensors, scalars)


def create_from_text(line, device, options):
    library = _abi.library()
    c_options, _keep = _problem.plan_options_from(options, device)
    handle = ctypes.c_void_p()
    encoded = _problem.text("problem", line)
    _abi.check(
        library.sirdar_plan_create_from_text(
            encoded, ctypes.addressof(c_options), ctypes.addressof(handle)
        )
    )
    try:
        problem, tensors, scalars = _problem.facts_of_text(line)
    except BaseException:
        library.sirdar_plan_destroy(handle.value)
        raise
    return Plan(handle.value, problem, device, tensors, scalars)
