"""Rotary position embedding by table: what the cache functions and flash_attn.layers.rotary share."""

import torch


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
