"""What torch.utils.flop_counter counts for sirdar's operators: products of matrices as for torch's own attention, whatever
masks hide; of ragged, paged and padded batches the lengths that there are."""

import torch
from torch.utils.flop_counter import register_flop_formula

from . import _core, _ops  # noqa: F401  the operators

_USED = {"q": "seqused_q", "k": "seqused_k"}


def _numbers(tensor):
    """A list; None of a tensor without data."""
    try:
        return tensor.tolist()
    except (NotImplementedError, RuntimeError):
        return None


def _lengths(side, tensor, given, options, batch):
    """Of each sequence."""
    longest = options.get(f"seqlen_{side}")
    if side == "k" and given["page_table"] is not None and longest is None:
        longest = given["page_table"].shape[1] * tensor.shape[1]
    used, starts = given[_USED[side]], given[f"cu_seqlens_{side}"]
    lengths = None if used is None else _numbers(used)
    if lengths is None and starts is not None:
        lengths = _numbers(starts.diff())
    return lengths or [longest if tensor.dim() == 3 or longest is not None else tensor.shape[1]] * batch


def _products(q, k, v, inputs, options):
    """(columns of q and k, columns of v), each times the pairs of a query and a key, in all heads."""
    bias, sink, _, *others = inputs
    given = dict(zip(_core.INPUTS, (bias, sink, *others)))
    batch = q.shape[0] if q.dim() == 4 else given["cu_seqlens_q"].shape[0] - 1
    lengths = (_lengths(side, tensor, given, options, batch) for side, tensor in (("q", q), ("k", k)))
    pairs = q.shape[-2] * sum(a * b for a, b in zip(*lengths))
    return pairs * q.shape[-1], pairs * v.shape[-1]


@register_flop_formula(torch.ops.sirdar.forward, get_raw=True)
def _forward(q, k, v, *inputs, out_val=None, **options):
    of_scores, of_out = _products(q, k, v, inputs, options)
    return 2 * (of_scores + of_out)


@register_flop_formula(torch.ops.sirdar.backward, get_raw=True)
def _backward(dout, dlse, out, lse, q, k, v, *inputs, out_val=None, **options):
    of_scores, of_out = _products(q, k, v, inputs, options)
    return 2 * (3 * of_scores + 2 * of_out)
