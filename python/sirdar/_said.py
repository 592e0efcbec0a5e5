"""Values in messages, which are one sentence."""

_SHOWN = 80  # characters
_END = 37  # of each end of what is longer


def shortened(text):
    """A text for a message, without quotes: of a long one both ends, in one line."""
    if len(text) > _SHOWN:
        text = f"{text[:_END]} ... {text[-_END:]}"
    return text.replace("\n", " ")


def said(value):
    """A value as Python writes it, shortened; arrays by their shapes, which is no look into their memory."""
    kind, shape = type(value).__name__, getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"{kind} of shape {list(shape)}"
    try:
        return shortened(repr(value))
    except Exception:  # an int of more digits than Python writes, a tensor without data
        return f"{kind} of {value.bit_length()} bits" if isinstance(value, int) else kind
