"""flash_attn.ops.triton.rotary: the rotation below flash_attn.layers.rotary, which vLLM and models with code of their own
import. In plain torch: any device."""

import torch

from ...layers.rotary import turned


def apply_rotary(
    x,
    cos,
    sin,
    seqlen_offsets=0,
    cu_seqlens=None,
    max_seqlen=None,
    interleaved=False,
    inplace=False,
    conjugate=False,
):
    """apply_rotary_emb() by another order of arguments, and without gradients where it writes over x."""
    result = turned(x, cos, sin, seqlen_offsets, cu_seqlens, interleaved, conjugate)
    if not inplace:
        return result
    with torch.no_grad():
        return x.copy_(result)
