"""The library's refusals in the words of who called by another library's names."""

import functools
import re

import torch

_WORDS = {
    "alibi": "alibi_slopes", "seqlen_q": "max_seqlen_q", "seqlen_k": "max_seqlen_k", "window_left": "window_size",
    "window_right": "window_size", "chunk_size": "attention_chunk", "lse": "softmax_lse",
}  # fmt: skip


def renamed(error, more):
    """The error with the argument that it is about, in front of a colon or of an index, as the caller knows it."""
    words = {**_WORDS, **more}
    name, colon, rest = str(error).partition(": ")
    if not colon or name not in words:
        return None
    rest = re.sub(rf"\b{name}\[", f"{words[name]}[", rest)
    return type(error)(f"{words[name]}: {rest}")


def in_words(function, **more):
    """The function, whose refusals name the arguments of the interfaces. A compiler's errors are its own."""

    @functools.wraps(function)
    def call(*inputs, **options):
        if torch.compiler.is_compiling():
            return function(*inputs, **options)
        try:
            return function(*inputs, **options)
        except (NotImplementedError, TypeError, ValueError) as error:
            refusal = renamed(error, more)
            if refusal is None:
                raise
        raise refusal

    return call
