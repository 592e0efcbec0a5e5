"""The shortest way to scaled_dot_product_attention with nothing but a scale and a mask that has no gradient.

Where tensors are small, Python takes longer than the attention. So what does not depend on pointers is found
once for each description of the tensors: a plan, the C struct with sizes and strides in place, and how outputs
are made. A repeated call looks that up, puts pointers into the struct and calls the library. Tensors keep
torch's order of axes, [batch, heads, seqlen, dim]; the library's order is in the layouts alone.
"""

import torch
from torch.autograd import forward_ad

from .. import _abi, _functions, _plan, _problem, _tensor
from . import _core, _eager, _ops

_layouts = {}  # (dtype, shape, stride, place) -> Layout of the tensor as [batch, seqlen, heads, dim]
_mask_layouts = {}  # the same of masks, as [batch|1, num_heads_q|1, seqlen_q|1, seqlen_k|1]
_passes = _functions.prepared  # (what differs) -> _Pass
_PLACES = {name: offset // 8 for name, offset in _plan._OFFSETS.items()}  # in words of the struct
_BACKWARD = ("q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv")
_KINDS = frozenset(("cpu", "cuda"))
_REFUSALS = (NotImplementedError, TypeError, ValueError)
_DEFAULTS = tuple(_problem.OPTIONS.values())
_CAUSAL, _SCALE, _ALIGNMENT, _LSE = (
    tuple(_problem.OPTIONS).index(name)
    for name in ("causal", "softmax_scale", "alignment", "return_lse")
)


def _layout_of(tensor):
    """The Layout of a tensor of torch's order in the library's; None for what must be copied first."""
    key = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_cpu or tensor.device)
    known = _layouts.get(key)
    if known is None:
        ordered = tensor.detach().transpose(1, 2) if tensor.dim() == 4 else tensor.detach()
        known = _tensor.read(ordered, "tensor")[1]
        if not known.is_plain:
            return None
        _tensor.remember(_layouts, key, known)
    return known


def _mask_layout_of(mask):
    layout = _plan.read_argument("mask", mask.detach())[1]
    key = (mask.dtype, mask.shape, mask.stride(), mask.is_cpu or mask.device)
    return _tensor.remember(_mask_layouts, key, layout)


def _name_of(mask):
    return "mask" if mask.dtype is torch.bool else "bias"


def _values(is_causal, scale, lse):
    """The options of a call, as sirdar.attention hands them down; causal masks aligned to the top left."""
    values = list(_DEFAULTS)
    values[_SCALE], values[_LSE] = scale, lse
    if is_causal:
        values[_CAUSAL], values[_ALIGNMENT] = True, "top_left"
    return tuple(values)


def _plan_of(op, layouts, values, like):
    key = ("short", op, values, tuple(layouts.items()))
    known = _functions._plans.get(key)
    known = known or _functions._known_plan(op, key, layouts, values, (), (), like)
    return known.plan


class _Pass:
    """A plan of one pass, and the structs of calls that are not in use; all tensors but pointers are in them."""

    __slots__ = (
        "causal", "device", "kind", "make", "masks", "plan", "scale", "size", "slots", "tails", "words",
    )  # fmt: skip

    def __init__(self, plan, layouts, names, kind):
        self.plan, self.kind = plan, kind
        self.size, self.device = plan.workspace_bytes, plan._device
        self.tails = [(_plan._OFFSETS[name], layouts[name].tail) for name in names]
        self.words = [_PLACES[name] for name in names]
        self.slots = []

    def _slot(self):
        slot = _plan._Slot(self.plan)
        for offset, tail in self.tails:
            _plan._NAMED.pack_into(slot.buffer, offset, 0, tail)
        return slot, memoryview(slot.buffer).cast("Q")

    def run(self, like, *pointers):
        """pointers: in the order of the names."""
        try:
            slot, view = self.slots.pop()
        except IndexError:
            slot, view = self._slot()
        for word, pointer in zip(self.words, pointers):
            view[word] = pointer
        device = self.device
        if self.size:
            workspace = (
                self.plan._workspace(self.kind, like)
                if device
                else _plan._host_workspace(self.size)
            )
            if workspace[0] != slot.workspace:
                slot.put_workspace(workspace[0], self.size)
        stream = self.kind.stream(like) if device else None
        status = self.plan._run(self.plan._handle, slot.address, stream)
        self.slots.append((slot, view))
        if status:
            _abi.check(status)

    def forward(self, query, key, value, *more):
        """out; more: the mask, if there is one, and lse, which is written into."""
        out = self.make(query)
        pointers = query.data_ptr(), key.data_ptr(), value.data_ptr(), out.data_ptr()
        if more:
            self.run(query, *pointers, *(tensor.data_ptr() for tensor in more))
        else:
            self.run(query, *pointers)
        return out


def _maker(query, value):
    """How out is made: with q's strides, so that what follows finds the order it had."""
    if value.shape[3] == query.shape[3]:
        return torch.empty_like
    batch, heads, rows, dim = *query.shape[:3], value.shape[3]
    return lambda query: query.new_empty((batch, rows, heads, dim)).transpose(1, 2)


def _mask_fits(mask, query, key):
    if mask.dtype not in (torch.bool, torch.float32, query.dtype) or mask.dim() > 4:
        return False
    sizes = zip(reversed(mask.shape), reversed((*query.shape[:3], key.shape[2])))
    return all(size in (1, wanted) for size, wanted in sizes)


def _fits(query, key, value, enable_gqa):
    """What needs no broadcasting and no copy, and has no mistake in it."""
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    if query.dtype.itemsize == 1 or query.device.type not in _KINDS:
        return False
    heads, heads_kv = query.shape[1], key.shape[1]
    if not query.shape[0] == key.shape[0] == value.shape[0] or value.shape[1] != heads_kv:
        return False
    if key.shape[2] != value.shape[2] or key.shape[3] != query.shape[3]:
        return False
    return heads == heads_kv or (enable_gqa and heads_kv > 0 and heads % heads_kv == 0)


def _learn(query, key, value, mask, is_causal, scale, enable_gqa, needs_lse):
    """The _Pass of a call, kept for the next like it; None where the long way must be taken."""
    if not _fits(query, key, value, enable_gqa):
        return None
    if mask is not None and not _mask_fits(mask, query, key):
        return None
    try:
        layouts = {name: _layout_of(t) for name, t in zip("qkv", (query, key, value))}
        if None in layouts.values():
            return None
        masks = {} if mask is None else {_name_of(mask): _mask_layout_of(mask)}
        told = (
            *layouts.values(),
            *(masks.values() or (None,)),
            is_causal,
            scale,
            enable_gqa,
            needs_lse,
        )
        layouts |= masks
        plan = _plan_of("forward", dict(layouts), _values(is_causal, scale, needs_lse), query)
    except _REFUSALS:
        return None  # the long way says it in the caller's words
    make = _maker(query, value)
    with torch.no_grad():
        layouts["out"] = _layout_of(make(query))
        if needs_lse:
            layouts["lse"] = _tensor.read(_lse(query), "lse")[1]
    names = ("q", "k", "v", "out", *masks, *(("lse",) if needs_lse else ()))
    made = _Pass(plan, layouts, names, _tensor.kind_of(query, "q"))
    made.make, made.causal, made.scale = make, is_causal, scale
    made.masks = masks
    return _tensor.remember(_passes, told, made, _functions._MAX_PLANS)


def _lse(query):
    return query.new_empty(query.shape[:3], dtype=torch.float32)


def _backward_pass(ready, dout, query, key, value, out, lse, *masks):
    """The _Pass of the gradients; None where dout must be copied first."""
    at = _layouts.get((dout.dtype, dout.shape, dout.stride(), dout.is_cpu or dout.device))
    told = (ready, at)
    known = _passes.get(told)
    if known is not None and at is not None:
        return known
    given = {"q": query, "k": key, "v": value, "out": out, "dout": dout}
    layouts = {name: _layout_of(tensor) for name, tensor in given.items()}
    if None in layouts.values():
        return None
    layouts["lse"] = _tensor.read(lse, "lse")[1]
    layouts |= ready.masks
    plan = _plan_of("backward", dict(layouts), _values(ready.causal, ready.scale, False), query)
    for name, tensor in (("dq", query), ("dk", key), ("dv", value)):
        layouts[name] = _layout_of(torch.empty_like(tensor))
    made = _Pass(plan, layouts, (*_BACKWARD, *ready.masks), ready.kind)
    return _tensor.remember(_passes, (ready, layouts["dout"]), made, _functions._MAX_PLANS)


class _Attention(torch.autograd.Function):
    """apply(_Pass, query, key, value[, mask]) of [batch, heads, seqlen, dim]."""

    @staticmethod
    def forward(ctx, ready, query, key, value, *masks):
        lse = _lse(query)
        out = ready.forward(query, key, value, *masks, lse)
        ctx.save_for_backward(query, key, value, out, lse, *masks)
        ctx.set_materialize_grads(False)
        ctx.ready = ready
        return out

    @staticmethod
    def backward(ctx, dout):
        ready, nothing = ctx.ready, (None,) * len(ctx.ready.masks)
        if dout is None:
            return (None,) * 4 + nothing
        saved = query, key, value, out, lse, *masks = ctx.saved_tensors
        if torch.is_grad_enabled() or not _eager.is_plain() or type(dout) is not torch.Tensor:
            return None, *_by_operator(ready, dout, *saved), *nothing
        if dout.is_neg() or dout.stride(3) != 1:
            dout = dout.resolve_neg().contiguous()
        known = _backward_pass(ready, dout, *saved)
        if known is None:
            return None, *_by_operator(ready, dout, *saved), *nothing
        grads = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        tensors = (query, key, value, out, lse, dout, *grads, *masks)
        known.run(query, *(tensor.data_ptr() for tensor in tensors))
        return None, *grads, *nothing


def _by_operator(ready, dout, query, key, value, out, lse, mask=None):
    """The gradients by sirdar::backward, which tracers see and which refuses to be differentiated."""
    options = {"causal": ready.causal, "softmax_scale": ready.scale}
    options["alignment"] = "top_left" if ready.causal else "bottom_right"
    dout, q, k, v, out = (tensor.transpose(1, 2) for tensor in (dout, query, key, value, out))
    given = dict.fromkeys(_core.INPUTS)
    if mask is not None:
        given[_name_of(mask)] = mask[(None,) * (4 - mask.dim())]
    bias, sink, *others = given.values()
    made = _ops.backward(dout, None, out, lse, q, k, v, bias, sink, [], *others, None, **options)
    return (grad.transpose(1, 2) for grad in made)


def attention(query, key, value, mask, is_causal, scale, enable_gqa):
    """Attention of plain tensors [batch, heads, seqlen, dim]; None where this way does not lead there."""
    if not (type(query) is type(key) is type(value) is torch.Tensor and _eager.is_plain()):
        return None
    if _eager.is_transformed() or forward_ad._current_level >= 0:
        return None
    if type(is_causal) is not bool or type(enable_gqa) is not bool:
        return None
    if scale is not None and type(scale) is not float:
        return None
    can_record, at_mask, is_negative = torch.is_grad_enabled(), None, False
    needs_lse = can_record and (query.requires_grad or key.requires_grad or value.requires_grad)
    try:
        if mask is not None:
            if type(mask) is not torch.Tensor or is_causal or (mask.requires_grad and can_record):
                return None
            place = mask.is_cpu or mask.device
            at_mask = _mask_layouts.get((mask.dtype, mask.shape, mask.stride(), place))
            is_negative = mask.is_neg()
        told = (
            _layouts.get((query.dtype, query.shape, query.stride(), query.is_cpu or query.device)),
            _layouts.get((key.dtype, key.shape, key.stride(), key.is_cpu or key.device)),
            _layouts.get((value.dtype, value.shape, value.stride(), value.is_cpu or value.device)),
            at_mask, is_causal, scale, enable_gqa, needs_lse,
        )  # fmt: skip
        is_negative = is_negative or query.is_neg() or key.is_neg() or value.is_neg()
        if is_negative or torch.is_autocast_enabled("cpu" if query.is_cpu else "cuda"):
            return None
        ready = None if mask is not None and at_mask is None else _passes.get(told)
        if ready is None:
            ready = _learn(query, key, value, mask, is_causal, scale, enable_gqa, needs_lse)
            if ready is None:
                return None
    except (RuntimeError, TypeError):  # tensors that have no strides
        return None
    masks = () if mask is None else (mask,)
    if needs_lse:
        return _Attention.apply(ready, query, key, value, *masks)
    return ready.forward(query, key, value, *masks)
