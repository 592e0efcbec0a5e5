"""The shortest way to attention with nothing but a scale and a mask that has no gradient.

Where tensors are small, Python takes longer than the attention. So what does not depend on pointers is found
once for each description of the tensors: a plan, the C struct with sizes and strides in place, and how outputs
are made. A repeated call looks that up, puts pointers into the struct and calls the library. Tensors keep
the order of axes that they come in, [batch, seqlen, heads, dim] or torch's [batch, heads, seqlen, dim]; the
library's order, the first, is in the layouts alone.
"""

import torch
from torch.autograd import forward_ad

from .. import _abi, _functions, _plan, _problem, _tensor
from . import _core, _eager, _ops


def _never(*tensors):
    return False


class _Nothing:
    """Stands for the _Pass of a call before the first."""

    check = staticmethod(_never)


_NOTHING = _Nothing()
_num_modes = torch._C._len_torch_dispatch_stack


class _Order:
    """An order of axes. layouts: (dtype, shape, stride, place) -> Layout of the tensor as [batch, seqlen, heads,
    dim]; no two orders share one."""

    def __init__(self, heads, rows):
        self.heads, self.rows, self.layouts = heads, rows, {}

    def turned(self, tensor):
        """From the library's order, or to it."""
        return tensor if self.rows == 1 else tensor.transpose(1, 2)

    def layout_of(self, tensor):
        """None for what must be copied first."""
        key = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_cpu or tensor.device)
        known = self.layouts.get(key)
        if known is None:
            at = _tensor.read(self.turned(tensor.detach()), "tensor")[1]
            if not at.is_plain:
                return None
            known = _tensor.Layout(at.code, at.shape, at.strides, at.device)
            _tensor.remember(self.layouts, key, known)
        return known


HEADS_FIRST, ROWS_FIRST = _Order(1, 2), _Order(2, 1)
_mask_layouts = {}  # the same of masks, as [batch|1, num_heads_q|1, seqlen_q|1, seqlen_k|1]
_passes = _functions.prepared  # (what differs) -> _Pass; (order, number of masks) -> that of the last call
_PLACES = {name: offset // 8 for name, offset in _plan._OFFSETS.items()}  # in words of the struct
_BACKWARD = ("q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv")
_KINDS = frozenset(("cpu", "cuda"))
_REFUSALS = (NotImplementedError, TypeError, ValueError)
_DEFAULTS = tuple(_problem.OPTIONS.values())
_CAUSAL, _SCALE, _ALIGNMENT, _LSE = (
    tuple(_problem.OPTIONS).index(name)
    for name in ("causal", "softmax_scale", "alignment", "return_lse")
)


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
        "causal", "check", "device", "is_gqa", "kind", "layouts", "make", "masks", "needs_lse", "order", "plan",
        "requires_grad", "scale", "size", "slots", "tails", "words",
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


def _maker(order, query, value):
    """How out is made: with q's strides, so that what follows finds the order it had."""
    if value.shape[3] == query.shape[3]:
        return torch.empty_like
    shape = (query.shape[0], query.shape[order.rows], query.shape[order.heads], value.shape[3])
    return lambda query: order.turned(query.new_empty(shape))


def _mask_fits(mask, query, key):
    """mask beside tensors of torch's order."""
    if mask.dtype not in (torch.bool, torch.float32, query.dtype) or mask.dim() > 4:
        return False
    sizes = zip(reversed(mask.shape), reversed((*query.shape[:3], key.shape[2])))
    return all(size in (1, wanted) for size, wanted in sizes)


def _fits(order, query, key, value, enable_gqa):
    """What needs no broadcasting and no copy, and has no mistake in it."""
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    if not (query.dtype == key.dtype == value.dtype and query.device == key.device == value.device):
        return False
    if query.dtype.itemsize == 1 or query.device.type not in _KINDS:
        return False
    heads, heads_kv = query.shape[order.heads], key.shape[order.heads]
    if not query.shape[0] == key.shape[0] == value.shape[0] or value.shape[order.heads] != heads_kv:
        return False
    if key.shape[order.rows] != value.shape[order.rows] or key.shape[3] != query.shape[3]:
        return False
    return heads == heads_kv or (enable_gqa and heads_kv > 0 and heads % heads_kv == 0)


def _learn(order, query, key, value, mask, is_causal, scale, enable_gqa, needs_lse):
    """The _Pass of a call, kept for the next like it; None where the long way must be taken."""
    if not _fits(order, query, key, value, enable_gqa):
        return None
    if mask is not None and not _mask_fits(mask, query, key):
        return None
    try:
        layouts = {name: order.layout_of(t) for name, t in zip("qkv", (query, key, value))}
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
    make = _maker(order, query, value)
    with torch.no_grad():
        layouts["out"] = order.layout_of(make(query))
        if needs_lse:
            layouts["lse"] = _tensor.read(_lse(order, query), "lse")[1]
    names = ("q", "k", "v", "out", *masks, *(("lse",) if needs_lse else ()))
    made = _Pass(plan, layouts, names, _tensor.kind_of(query, "q"))
    made.make, made.causal, made.scale = make, is_causal, scale
    made.masks, made.order, made.layouts = masks, order, tuple(layouts[name] for name in ("q", "k", "v", "out"))
    made.is_gqa, made.needs_lse = enable_gqa, needs_lse
    # The next call like it asks this one question instead of all that attention() asks.
    tensors = (query, key, value, *(() if mask is None else (mask,)))
    made.check = made.kind.guards(*tensors) if made.kind.guards else _never
    made.requires_grad = any(tensor.requires_grad for tensor in tensors)
    return _tensor.remember(_passes, told, made, _functions._MAX_PLANS)


def _lse(order, query):
    shape = query.shape
    return query.new_empty((shape[0], shape[order.heads], shape[order.rows]), dtype=torch.float32)


def _is_as_known(ready, lse, mask=None, *tensors):
    """Whether tensors that autograd has kept lie as they did: hooks may hand out copies."""
    order = ready.order
    if not lse.is_contiguous():
        return False
    if mask is not None and _tail_of(_mask_layouts, mask) != next(iter(ready.masks.values())).tail:
        return False
    return all(
        type(tensor) is torch.Tensor and _tail_of(order.layouts, tensor) == layout.tail
        for tensor, layout in zip(tensors, ready.layouts)
    )


def _tail_of(layouts, tensor):
    at = layouts.get((tensor.dtype, tensor.shape, tensor.stride(), tensor.is_cpu or tensor.device))
    return None if at is None or tensor.is_neg() else at.tail


def _backward_pass(ready, dout, query, key, value, out, lse, *masks):
    """The _Pass of the gradients; None where dout must be copied first."""
    order = ready.order
    at = order.layouts.get((dout.dtype, dout.shape, dout.stride(), dout.is_cpu or dout.device))
    told = (ready, at)
    known = _passes.get(told)
    if known is not None and at is not None:
        return known
    given = {"q": query, "k": key, "v": value, "out": out, "dout": dout}
    layouts = {name: order.layout_of(tensor) for name, tensor in given.items()}
    if None in layouts.values():
        return None
    layouts["lse"] = _tensor.read(lse, "lse")[1]
    layouts |= ready.masks
    plan = _plan_of("backward", dict(layouts), _values(ready.causal, ready.scale, False), query)
    for name, tensor in (("dq", query), ("dk", key), ("dv", value)):
        layouts[name] = order.layout_of(torch.empty_like(tensor))
    made = _Pass(plan, layouts, (*_BACKWARD, *ready.masks), ready.kind)
    return _tensor.remember(_passes, (ready, layouts["dout"]), made, _functions._MAX_PLANS)


class _Attention(torch.autograd.Function):
    """apply(_Pass, query, key, value[, mask])"""

    @staticmethod
    def forward(ctx, ready, query, key, value, *masks):
        lse = _lse(ready.order, query)
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
        _ops.refuse_batches(dout)
        saved = query, key, value, out, lse, *masks = ctx.saved_tensors
        mask = masks[0] if masks else None
        is_long = torch.is_grad_enabled() or not _eager.is_plain() or type(dout) is not torch.Tensor
        if is_long or not _is_as_known(ready, lse, mask, query, key, value, out):
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
    turned = ready.order.turned
    dout, q, k, v, out = (turned(tensor) for tensor in (dout, query, key, value, out))
    given = dict.fromkeys(_core.INPUTS)
    if mask is not None:
        given[_name_of(mask)] = mask[(None,) * (4 - mask.dim())]
    bias, sink, *others = given.values()
    made = _ops.backward(dout, None, out, lse, q, k, v, bias, sink, [], *others, None, **options)
    return map(turned, made)


def _is_as_last(last, query, key, value, mask=None):
    try:  # a nested tensor that is asked for its shape in C ends the program
        if query.is_nested or key.is_nested or value.is_nested:
            return False
        if mask is None:
            return last.check(query, key, value)
        return not mask.is_nested and last.check(query, key, value, mask)
    except AttributeError:  # no tensor
        return False


def _is_last(last, is_causal, scale, enable_gqa):
    """Whether a call of tensors that are as the last ones, with no mode of torch's in between, is that call."""
    if is_causal is not last.causal or enable_gqa is not last.is_gqa:
        return False
    if scale is not last.scale and (type(scale) is not float or scale != last.scale):
        return False
    if forward_ad._current_level >= 0:
        return False
    return last.needs_lse if last.requires_grad and torch.is_grad_enabled() else not last.needs_lse


def attention(order, query, key, value, mask, is_causal, scale, enable_gqa):
    """Attention of plain tensors in an order; None where this way does not lead there. A causal mask is aligned to
    the top left."""
    # Of what _eager.is_plain() asks, a plan's guards see torch.jit.trace, and miss some modes.
    if torch.compiler.is_compiling() or _num_modes():
        return None
    masks = () if mask is None else (mask,)
    last = _passes.get((order, len(masks)), _NOTHING)
    if _is_as_last(last, query, key, value, *masks) and _is_last(last, is_causal, scale, enable_gqa):
        if last.needs_lse:
            return _Attention.apply(last, query, key, value, *masks)
        return last.forward(query, key, value, *masks)
    if not type(query) is type(key) is type(value) is torch.Tensor:
        return None
    if not _eager.is_unseen() or _eager.is_transformed() or forward_ad._current_level >= 0:
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
        known = order.layouts.get
        told = (
            known((query.dtype, query.shape, query.stride(), query.is_cpu or query.device)),
            known((key.dtype, key.shape, key.stride(), key.is_cpu or key.device)),
            known((value.dtype, value.shape, value.stride(), value.is_cpu or value.device)),
            at_mask, is_causal, scale, enable_gqa, needs_lse,
        )  # fmt: skip
        is_negative = is_negative or query.is_neg() or key.is_neg() or value.is_neg()
        if is_negative or torch.is_autocast_enabled("cpu" if query.is_cpu else "cuda"):
            return None
        ready = None if mask is not None and at_mask is None else _passes.get(told)
        if ready is None:
            ready = _learn(order, query, key, value, mask, is_causal, scale, enable_gqa, needs_lse)
            if ready is None:
                return None
    except (RuntimeError, TypeError):  # tensors that have no strides
        return None
    _passes[order, len(masks)] = ready
    if needs_lse:
        return _Attention.apply(ready, query, key, value, *masks)
    return ready.forward(query, key, value, *masks)


def rows_first(q, k, v, causal, alignment, scale):
    """As attention, of [batch, seqlen, heads, dim]; alignment: of a causal mask, where lengths differ."""
    if not type(q) is type(k) is type(v) is torch.Tensor:
        return None
    if q.is_nested or k.is_nested:  # they have no sizes, and are refused elsewhere
        return None
    is_square = q.dim() == k.dim() == 4 and q.shape[1] == k.shape[1]
    allowed = ("bottom_right",) if causal is not True or is_square else ()
    allowed += (
        ("top_left",) if causal is True else ()
    )  # elsewhere it has no effect, which is an error
    if type(alignment) is not str or alignment not in allowed:
        return None
    return attention(ROWS_FIRST, q, k, v, None, causal, scale, True)
