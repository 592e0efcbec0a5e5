"""torch's scaled_dot_product_attention, and a context in which torch's name means this one."""

import threading
import warnings
from typing import Optional

import torch
from torch.overrides import TorchFunctionMode

from .. import _problem
from . import _core, _short
from ._attention import attention, check_tensor

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None), bool, int, float))
_builtin = torch.nn.functional.scaled_dot_product_attention
_noticed = set()


def _check(query, key, value, enable_gqa):
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, tensor)
        if tensor.dim() < 2:
            raise ValueError(f"{name}: has {tensor.dim()} axes; [..., seqlen, head_dim] is needed.")
    _check_heads(query, key, value, enable_gqa)


def _check_heads(query, key, value, enable_gqa):
    heads = [tensor.shape[-3] if tensor.dim() > 2 else 1 for tensor in (query, key, value)]
    if enable_gqa:
        if heads[1] != heads[2] or heads[1] == 0 or heads[0] % heads[1]:
            raise ValueError(
                f"enable_gqa: query, key and value have {heads[0]}, {heads[1]} and {heads[2]} heads; "
                "key and value must have equally many, and query a multiple of that."
            )
    elif any(one != 1 and other != 1 and one != other for one, other in zip(heads, (heads[1], heads[2], heads[0]))):
        raise ValueError(
            f"query, key, value: have {heads[0]}, {heads[1]} and {heads[2]} heads; they must be equal "
            "(or 1): pass enable_gqa=True where query heads share those of key and value."
        )


def _leading_axes(query, key, value):
    shapes = [tensor.shape[:-3] for tensor in (query, key, value)]
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        said = " and ".join(str(list(shape)) for shape in shapes)
        raise ValueError(
            f"query, key, value: have the leading axes {said}; they must be equal, or 1."
        ) from None


def _flag(name, value):
    """A bool of Python, NumPy or a trace; torch takes no other, no 0 and 1 either."""
    is_numpy = type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")
    if not is_numpy and not isinstance(value, (bool, torch.SymBool)):
        raise TypeError(f"{name}: {_problem.said(value)} is not a flag; pass True or False.")
    return bool(value)


def _is_usual(query, key, value):
    """Plain tensors of four axes and one batch size, which need no broadcasting."""
    if not type(query) is type(key) is type(value) is torch.Tensor:
        return False
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    return query.shape[0] == key.shape[0] == value.shape[0]


def _as_four(tensor, leading):
    """[*leading, heads, seqlen, dim] as [batch, seqlen, heads, dim], a view where strides allow it."""
    while tensor.dim() < 3:
        tensor = tensor.unsqueeze(0)
    tensor = tensor.expand(*leading, *tensor.shape[-3:])
    tensor = tensor.unsqueeze(0) if not leading else tensor.flatten(0, -4)
    return tensor.transpose(1, 2)


def _four_axes_of_mask(attn_mask, leading):
    """attn_mask with torch's broadcasting as [batch|1, heads|1, seqlen_q|1, seqlen_k|1]."""
    while attn_mask.dim() < 4:
        attn_mask = attn_mask.unsqueeze(0)
    if attn_mask.dim() == 4 and len(leading) <= 1:
        return attn_mask
    if all(size == 1 for size in attn_mask.shape[:-3]):
        return attn_mask.flatten(0, -4)
    return attn_mask.expand(*leading, *attn_mask.shape[-3:]).flatten(0, -4)


def _mask_arguments(attn_mask, is_causal, query, key, leading):
    """What attention() is told about masks."""
    if attn_mask is None:
        return {"causal": True, "alignment": "top_left"} if is_causal else {}
    if is_causal:
        raise ValueError(
            "is_causal: is set together with attn_mask; torch allows one of them: put the causal part "
            "into attn_mask, or call sirdar.torch.attention, which takes both."
        )
    variant = getattr(attn_mask, "variant", None)  # torch.nn.attention.bias.CausalBias
    if variant is not None:
        if variant.name == "UPPER_LEFT":  # which means the same for any sizes
            return {"causal": True, "alignment": "top_left"}
        made_for = [attn_mask.seq_len_q, attn_mask.seq_len_kv]
        if made_for != [query.shape[-2], key.shape[-2]]:
            raise ValueError(
                f"attn_mask: is causal_lower_right of {made_for}; {[query.shape[-2], key.shape[-2]]}, the "
                "rows of query and key, is needed."
            )
        return {"causal": True, "alignment": "bottom_right"}
    check_tensor("attn_mask", attn_mask, query.device)
    axes = _four_axes_of_mask(attn_mask, leading)
    if attn_mask.dtype == torch.bool:
        return {"mask": axes}
    if attn_mask.dtype not in (query.dtype, torch.float32):
        raise ValueError(
            f"attn_mask: has dtype {attn_mask.dtype}; bool (true = visible), float32 or the query's "
            f"{query.dtype} (added to the scores) is allowed."
        )
    return {"bias": axes}


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Optional[torch.Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention, computed by this library.

    query [..., num_heads_q, seqlen_q, head_dim], key and value [..., num_heads_kv, seqlen_k, dim].
    As torch has it: is_causal is aligned to the top left corner, a bool attn_mask shows where it is
    true, a floating one is added to the scores and may have a gradient, leading axes broadcast.
    A row without a visible key gives 0. Dropout draws from torch's generator (torch.manual_seed), but
    drops other weights than torch does. float64 is refused. Returns [..., num_heads_q, seqlen_q, dim of value].
    Raises what docs/torch.md lists, in the words of this signature.
    """
    if type(dropout_p) in (float, int) and dropout_p == 0:
        out = _short.attention(
            _short.HEADS_FIRST, query, key, value, attn_mask, is_causal, scale, enable_gqa
        )
        if out is not None:
            return out
    if torch.compiler.is_compiling():  # errors are the compiler's then
        return _attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    try:
        return _attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    except (NotImplementedError, TypeError, ValueError, RuntimeError) as error:
        refusal = _in_these_words(error, query, key, value, attn_mask)
        if refusal is None:
            raise
    raise refusal


def _attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    if isinstance(scale, torch.Tensor):
        scale = _core.number("scale", scale)
    if type(is_causal) is not bool:
        is_causal = _flag("is_causal", is_causal)
    if type(enable_gqa) is not bool:
        enable_gqa = _flag("enable_gqa", enable_gqa)
    if _is_usual(query, key, value):
        heads, heads_kv = query.shape[1], key.shape[1]
        if not heads == heads_kv == value.shape[1]:
            _check_heads(query, key, value, enable_gqa)
        if enable_gqa or heads == heads_kv == value.shape[1]:
            q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
            masks = _mask_arguments(attn_mask, is_causal, query, key, query.shape[:1])
            out = attention(q, k, v, dropout_p=dropout_p, softmax_scale=scale, **masks)
            return out.transpose(1, 2)
    _check(query, key, value, enable_gqa)
    leading = _leading_axes(query, key, value)
    heads = max(tensor.shape[-3] if tensor.dim() > 2 else 1 for tensor in (query, key, value))
    if not enable_gqa and query.dim() > 2 and query.shape[-3] != heads:
        query = query.expand(*query.shape[:-3], heads, *query.shape[-2:])
    masks = _mask_arguments(attn_mask, is_causal, query, key, leading)
    q, k, v = (_as_four(tensor, leading) for tensor in (query, key, value))
    if k.shape[2] != v.shape[2]:
        k, v = (t.expand(-1, -1, heads, -1) if t.shape[2] == 1 else t for t in (k, v))
    out = attention(q, k, v, dropout_p=dropout_p, softmax_scale=scale, **masks)
    out = out.transpose(1, 2)
    rank = max(tensor.dim() for tensor in (query, key, value))
    if rank == 2:
        return out[0, 0]
    return out.unflatten(0, leading) if leading else out[0]


_WORDS = {
    "q": "query", "k": "key", "v": "value", "bias": "attn_mask", "mask": "attn_mask",
    "softmax_scale": "scale", "q, k, v": "query, key, value",
}  # fmt: skip


def _in_these_words(error, query, key, value, attn_mask):
    """A refusal as the caller of this function can understand it: other names, and shapes in torch's order of
    axes. None for an error that is none of the library's."""
    try:
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            check_tensor(name, tensor)
        if isinstance(attn_mask, torch.Tensor):
            check_tensor("attn_mask", attn_mask)
        _check_shapes(query, key, value, attn_mask)
    except (NotImplementedError, TypeError, ValueError) as refusal:
        return refusal.with_traceback(None)
    name, colon, rest = str(error).partition(": ")
    if not colon or name not in _WORDS:
        return None
    return type(error)(f"{_WORDS[name]}: {rest}")


def _check_shapes(query, key, value, attn_mask):
    """ValueError for sizes that do not fit, of which attention() would speak in its own order of axes."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() < 2:
            raise ValueError(
                f"{name}: has {tensor.dim()} axes; pass [..., rows, columns], 2 of them at least."
            )
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(
            f"key: has {key.shape[-1]} columns and query {query.shape[-1]}; they must be equal."
        )
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"value: has {value.shape[-2]} rows and key {key.shape[-2]}; they must be equal."
        )
    if isinstance(attn_mask, torch.Tensor) and not hasattr(attn_mask, "variant"):
        rows = (*query.shape[:-1], key.shape[-2])
        if attn_mask.dim() > max(query.dim(), key.dim(), value.dim()):
            raise ValueError(
                f"attn_mask: has {attn_mask.dim()} axes; what broadcasts to {list(rows)} is needed."
            )
        sizes = zip(reversed(attn_mask.shape), reversed(rows))
        if any(size not in (1, wanted) for size, wanted in sizes):
            raise ValueError(
                f"attn_mask: has shape {list(attn_mask.shape)}; what broadcasts to {list(rows)} is needed."
            )


def _call(fallback, args, kwargs):
    try:
        return scaled_dot_product_attention(*args, **kwargs)
    except (NotImplementedError, TypeError, ValueError) as refusal:
        if fallback is None:
            raise
        reason = str(refusal)
    if reason not in _noticed:
        _noticed.add(reason)
        warnings.warn(
            f"sirdar.torch.sdpa: torch's own attention computes this call, because {reason}",
            stacklevel=3,
        )
    with _unheard():
        return _builtin(*args, **kwargs)


def _unheard():
    """A context around this one would take torch's own call for one that it is asked for."""
    if not torch.compiler.is_compiling():
        modes = map(torch._C._get_function_stack_at, range(torch._C._len_torch_function_stack()))
        if any(type(mode) is _Mode for mode in modes):
            return torch._C.DisableTorchFunction()
    return _core.NOTHING


class _Mode(TorchFunctionMode):
    """Finds the calls of names that were imported before, of this thread."""

    def __init__(self, fallback):
        super().__init__()
        self.fallback = fallback

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is _builtin:
            return _call(self.fallback, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class _Replacement:
    """Stands in torch.nn.functional while a context is active: what torch's own Python functions call,
    which do not show a mode what they do."""

    def __init__(self):
        self.active = []  # (thread, fallback), innermost last
        self.lock = threading.Lock()

    def enter(self, fallback):
        with self.lock:
            self.active.append((threading.get_ident(), fallback))
            torch.nn.functional.scaled_dot_product_attention = self.function

    def leave(self):
        with self.lock:
            thread = threading.get_ident()
            last = max(i for i, (owner, _) in enumerate(self.active) if owner == thread)
            del self.active[last]
            if not self.active:
                torch.nn.functional.scaled_dot_product_attention = _builtin

    def function(self, *args, **kwargs):
        if torch.compiler.is_compiling():  # which happens in the thread that asked
            return _call(self.active[-1][1], args, kwargs)
        thread = threading.get_ident()
        for owner, fallback in reversed(self.active):
            if owner == thread:
                with _unasked(args, kwargs):
                    return _call(fallback, args, kwargs)
        return _builtin(*args, **kwargs)


def _unasked(args, kwargs):
    """Modes see every question that is put to a tensor, which takes longer than a short call: where the context's
    own is the only one, it is not asked."""
    if torch._C._len_torch_function_stack() == 1:
        is_plain = all(type(one) in _PLAIN for one in (*args, *kwargs.values()))
        if is_plain and type(torch._C._get_function_stack_at(0)) is _Mode:
            return torch._C.DisableTorchFunction()
    return _core.NOTHING


_replacement = _Replacement()


class sdpa:
    """A context in which torch.nn.functional.scaled_dot_product_attention is this library's.

        with sirdar.torch.sdpa():
            model(x)

    However the function was imported, it is found; other threads are not affected. What the library
    refuses raises, or with fallback="torch" goes to torch's own function, and a warning says so and
    why, once for each reason.
    """

    def __init__(self, fallback: Optional[str] = None):
        if fallback is not None and not (isinstance(fallback, str) and fallback == "torch"):
            raise ValueError(f"fallback: is {_problem.said(fallback)}; None (raise) or 'torch' is allowed.")
        self._fallback, self._modes = fallback, []

    def __enter__(self):
        self._modes.append(_Mode(self._fallback))
        self._modes[-1].__enter__()
        _replacement.enter(self._fallback)
        return self

    def __exit__(self, *error):
        _replacement.leave()
        self._modes.pop().__exit__(*error)
