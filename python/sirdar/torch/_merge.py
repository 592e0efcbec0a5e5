"""Partial results over disjoint keys put together, in torch's own operators: any device, differentiable."""

from typing import Sequence, Tuple

import torch

from ._attention import check_memory, check_tensor


def combined(outs: Sequence[torch.Tensor], lses: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """outs: partial results [..., dim] each; lses fp32 [number of outs, ...] of the same rows. (out in fp32,
    lse). A part whose lse is -inf is not read."""
    largest = lses.detach().amax(0)
    is_empty = largest == -torch.inf
    base = largest.masked_fill(is_empty, 0)
    parts = torch.exp(lses - base)
    total = parts.sum(0).masked_fill(is_empty, 1)
    out = None
    for part, weight in zip(outs, (parts / total).unsqueeze(-1)):
        term = part.float().masked_fill(weight == 0, 0) * weight
        out = term if out is None else out + term
    return out, (base + torch.log(total)).masked_fill(is_empty, -torch.inf)


def merge(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Merges two partial results over disjoint keys of the same queries into (out, lse), on any device,
    differentiable in all four.

    out_a, out_b [batch, seqlen_q, num_heads_q, head_dim_v] or ragged [total_q, ...], of one dtype; lse_a, lse_b
    fp32 as attention() returns them. (0, -inf) is the identity. Computed in fp32, rounded once.
    """
    check_tensor("out_a", out_a)
    given = {"lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}
    for name, tensor in given.items():
        check_tensor(name, tensor, out_a.device, "out_a")
    rows = (*out_a.shape[:-3], out_a.shape[-2], out_a.shape[-3]) if out_a.dim() in (3, 4) else None
    if rows is None or out_b.shape != out_a.shape or out_b.dtype != out_a.dtype:
        raise ValueError(
            f"out_a, out_b: are {out_a.dtype} {tuple(out_a.shape)} and {out_b.dtype} {tuple(out_b.shape)}; "
            "[batch, seqlen_q, num_heads_q, head_dim_v] or [total_q, num_heads_q, head_dim_v], both alike, "
            "are needed."
        )
    for name, lse in (("lse_a", lse_a), ("lse_b", lse_b)):
        if lse.dtype != torch.float32 or tuple(lse.shape) != rows:
            raise ValueError(
                f"{name}: is {lse.dtype} of shape {tuple(lse.shape)}; torch.float32 of shape {rows} is needed."
            )
    for name, tensor in (("out_a", out_a), *given.items()):
        check_memory(name, tensor)
    lses = torch.stack((lse_a, lse_b)).transpose(-1, -2)
    out, lse = combined((out_a, out_b), lses)
    return out.to(out_a.dtype), lse.transpose(-1, -2).contiguous()
