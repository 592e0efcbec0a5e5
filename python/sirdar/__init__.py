"""Sirdar: exact attention, forward and backward, for arrays of NumPy, torch, JAX, CuPy and DLPack.

    import sirdar
    out = sirdar.attention(q, k, v, causal=True)

Importing this needs no framework, no GPU and no library; docs/python.md is the guide.
"""

from . import expressions
from ._functions import (
    Gradients,
    attention,
    attention_varlen,
    backward,
    decode,
    explain,
    merge,
    plan,
)
from ._plan import Plan
from ._tools import doctor, selftest

__version__ = "0.1.0"

__all__ = [
    "Gradients", "Plan", "attention", "attention_varlen", "backward", "decode", "doctor", "explain",
    "expressions", "merge", "plan", "selftest",
]  # fmt: skip
