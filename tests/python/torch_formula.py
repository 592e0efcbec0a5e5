"""Attention by its definition as differentiable torch in float64: what the tests of sirdar.torch compare with."""

import torch


def shown(seqlen_q, seqlen_k, causal=False, left=None, right=None, shift=None):
    """bool [seqlen_q, seqlen_k]; shift: seqlen_k - seqlen_q, or 0 for masks aligned to the top left."""
    shift = seqlen_k - seqlen_q if shift is None else shift
    distance = torch.arange(seqlen_q)[:, None] + shift - torch.arange(seqlen_k)
    visible = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool)
    if causal:
        visible &= distance >= 0
    if left is not None:
        visible &= distance <= left
    if right is not None:
        visible &= distance >= -right
    return visible


def attention(
    q, k, v, *, scale=None, softcap=0.0, bias=None, mod=None, visible=None, sink=None, factor=None
):
    """(out, lse); q [batch, seqlen_q, heads, dim]; mod: a function of the scores [batch, heads, seqlen_q,
    seqlen_k]; factor: what dropout multiplies the weights by. Inputs of any dtype, results in float64."""
    q, k, v = q.double(), k.double(), v.double()
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (
        q.shape[-1] ** -0.5 if scale is None else scale
    )
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.double()
    if mod is not None:
        scores = mod(scores)
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    terms = scores
    if sink is not None:
        terms = torch.cat(
            [scores, sink.double()[:, None, None].expand(*scores.shape[:3], 1)], dim=-1
        )
    empty = (terms == -torch.inf).all(-1)
    lse = torch.where(empty, 0, torch.logsumexp(terms.masked_fill(empty[..., None], 0), -1))
    weights = torch.exp(scores - lse[..., None])
    out = torch.einsum("bhqk,bkhd->bqhd", weights if factor is None else weights * factor, v)
    return out, torch.where(empty, -torch.inf, lse)


def close(actual, wanted, tolerance=5e-6):
    torch.testing.assert_close(actual.double(), wanted.double(), rtol=tolerance, atol=tolerance)
