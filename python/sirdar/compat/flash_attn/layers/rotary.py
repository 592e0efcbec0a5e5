"""Rotary position embedding under FlashAttention's name, in plain torch: any device, differentiable."""

import torch


def _positions(x, seqlen_offsets, cu_seqlens):
    """Position of each row: [batch, seqlen], or [total] with cu_seqlens."""
    device = x.device
    if cu_seqlens is None:
        positions = torch.arange(x.shape[1], device=device)[None]
        offsets = torch.as_tensor(seqlen_offsets, device=device)
        return positions + (offsets[:, None] if offsets.dim() else offsets)
    starts = cu_seqlens.long()
    rows = torch.arange(x.shape[0], device=device)
    sequence = torch.searchsorted(starts[1:], rows, right=True)
    offsets = torch.as_tensor(seqlen_offsets, device=device)
    return rows - starts[sequence] + (offsets[sequence] if offsets.dim() else offsets)


def rotate(x, cos, sin, positions, interleaved=False):
    """x [..., heads, dim] turned by the angles of `positions` [...]; cos, sin [positions, rotary_dim/2].
    Columns past rotary_dim stay. Computed in fp32, rounded once."""
    half = cos.shape[-1]
    cosine = cos[positions].float().unsqueeze(-2)
    sine = sin[positions].float().unsqueeze(-2)
    turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    first, second = (
        (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.split(half, dim=-1)
    )
    pair = (first * cosine - second * sine, first * sine + second * cosine)
    joined = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat((joined.to(x.dtype), rest), dim=-1)


def apply_rotary_emb(
    x,
    cos,
    sin,
    interleaved=False,
    inplace=False,
    seqlen_offsets=0,
    cu_seqlens=None,
    max_seqlen=None,
    conjugate=False,
):
    """x [batch, seqlen, heads, dim], or [total, heads, dim] with cu_seqlens, turned from position
    seqlen_offsets (an int, or [batch]) on. conjugate turns back."""
    result = rotate(
        x, cos, -sin if conjugate else sin, _positions(x, seqlen_offsets, cu_seqlens), interleaved
    )
    return x.copy_(result) if inplace else result
