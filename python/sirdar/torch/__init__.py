"""Attention for torch, with gradients: on the CPU and on Hopper GPUs.

    import sirdar.torch
    out = sirdar.torch.attention(q, k, v, causal=True)     # [batch, seqlen, heads, head_dim]

attention            every argument of sirdar.attention, differentiable
attention_varlen     sequences of different lengths end to end, with cu_seqlens
backward             the backward pass by itself
merge                two results over disjoint keys, put together
scaled_dot_product_attention   torch's own signature and meaning, [..., heads, seqlen, head_dim]
sdpa                 a context in which torch's function of that name is this one

Errors are ValueError and TypeError for what is not allowed, NotImplementedError for what is allowed
but cannot be computed here; their text is one sentence. Nothing falls back to anything silently.
"""

from . import _flops  # noqa: F401
from ._attention import attention, attention_varlen, backward
from ._merge import merge
from ._sdpa import scaled_dot_product_attention, sdpa

__all__ = [
    "attention",
    "attention_varlen",
    "backward",
    "merge",
    "scaled_dot_product_attention",
    "sdpa",
]
