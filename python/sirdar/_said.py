"""Values in messages, which are one sentence."""

_SHOWN = 80  # characters
_END = 37  # of each end of what is longer
_DEEP = 3  # containers in containers that are written out
_BRACKETS = {tuple: "()", list: "[]", set: "{}", frozenset: "{}", dict: "{}"}


def shortened(text):
    """A text for a message, without quotes: of a long one both ends, in one line."""
    if len(text) > _SHOWN:
        text = f"{text[:_END]} ... {text[-_END:]}"
    return text.replace("\n", " ")


def _each(items, deep):
    """Items of a container; of many the ends, which is more than a message shows."""
    shown = [*items]
    if len(shown) > _SHOWN:
        shown = shown[: _SHOWN // 2] + shown[-(_SHOWN // 2) :]
    return [said(item, deep) for item in shown]


def _of_container(value, kind, deep):
    opened, closed = _BRACKETS[kind]
    if not deep:
        return f"{opened}...{closed}"
    if kind is dict:
        pairs = zip(_each(value.keys(), deep - 1), _each(value.values(), deep - 1))
        return opened + ", ".join(f"{key}: {item}" for key, item in pairs) + closed
    if not value and kind in (set, frozenset):
        return repr(value)
    comma = "," if kind is tuple and len(value) == 1 else ""
    return opened + ", ".join(_each(value, deep - 1)) + comma + closed


def said(value, deep=_DEEP):
    """A value as Python writes it, shortened; arrays by their shapes, alone or in containers, which is no look into
    their memory."""
    kind, shape = type(value).__name__, getattr(value, "shape", None)
    if isinstance(shape, tuple) and (shape or hasattr(value, "untyped_storage") and not _has_memory(value)):
        return f"{kind} of shape {list(shape)}"
    try:
        container = next((one for one in _BRACKETS if isinstance(value, one)), None)
        return shortened(_of_container(value, container, deep) if container else repr(value))
    except Exception:  # an int of more digits than Python writes, a tensor without data
        return f"{kind} of {value.bit_length()} bits" if isinstance(value, int) else kind


def _has_memory(tensor):
    try:
        return tensor.untyped_storage().nbytes() > 0
    except Exception:  # a tensor that has no storage
        return False
