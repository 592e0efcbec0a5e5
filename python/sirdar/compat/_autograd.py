"""What FlashAttention's autograd functions, FlashAttnFunc.apply(...) and its kin, do in both interfaces."""

import torch

from .. import torch as _with_torch
from ..torch import _core, _eager, _ops
from ..torch._attention import checked_inputs, draw_rng
from ._words import in_words

attention = in_words(_with_torch.attention, page_table="block_table", seqused_k="cu_seqlens_k")
_NO_PAGES = "block_table: attention over pages has no backward pass; gather the pages into k and v."


def forward(ctx, q, k, v, options, is_grad_enabled, page_table=None):
    """(out, lse, rng) of attention(); ctx remembers what gradients() needs. options: those of attention(), numbers
    and flags read already."""
    q, k, v = checked_inputs(q, k, v)
    rng = draw_rng(options.get("dropout_p", 0.0))
    ctx.is_kept = _core.flag("is_grad_enabled", is_grad_enabled)
    ctx.has_pages = page_table is not None
    with torch.no_grad():
        out, lse = attention(q, k, v, page_table=page_table, dropout_rng=rng, return_lse=True, **options)
    if ctx.is_kept and not ctx.has_pages:
        ctx.options = dict(options)
        ctx.options["deterministic"] |= torch.are_deterministic_algorithms_enabled()
        given = [ctx.options.pop(name, None) for name in _core.INPUTS]
        ctx.save_for_backward(out, lse, q, k, v, *given, rng)
    return out, lse, rng


def gradients(ctx, dout, dlse=None):
    """dq, dk and dv."""
    if ctx.has_pages:
        raise NotImplementedError(_NO_PAGES)
    if not ctx.is_kept:
        raise RuntimeError(
            "is_grad_enabled: it was False in the forward pass, which kept nothing for this one; pass True, or "
            "torch.is_grad_enabled()."
        )
    # What is recorded refuses to be differentiated again.
    run = _ops.backward if torch.is_grad_enabled() or not _eager.is_plain() else _core.backward
    return _ops.gradients(run, ctx.saved_tensors, ctx.options, (False, False, ()), dout, dlse)[:3]
