"""Between padded batches and sequences that lie end to end, under FlashAttention's names."""

import torch

from ... import _problem
from ...torch import _core
from ...torch._attention import check_memory


def _check(name, tensor, axes, shape):
    """A tensor of at least so many axes."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: {_problem.said(tensor)} is no tensor; pass one of shape {shape}.")
    if tensor.dim() < axes:
        raise ValueError(f"{name}: has shape {tuple(tensor.shape)}; {shape} is needed.")
    check_memory(name, tensor)


def _check_padded(hidden_states, name, mask):
    _check("hidden_states", hidden_states, 2, "[batch, seqlen, ...]")
    _check(name, mask, 2, "[batch, seqlen]")
    wanted = tuple(hidden_states.shape[:2])
    if tuple(mask.shape) != wanted:
        raise ValueError(f"{name}: has shape {tuple(mask.shape)}; {wanted}, that of hidden_states, is needed.")


def _check_indices(indices):
    _check("indices", indices, 1, "[rows]")
    if indices.dtype not in (torch.int64, torch.int32) or indices.dim() != 1:
        raise ValueError(
            f"indices: is {indices.dtype} of shape {tuple(indices.shape)}; torch.int64 of shape [rows] is needed."
        )


def index_first_axis(input, indices):
    """Rows of the first axis: [rows, ...] -> [len(indices), ...]."""
    _check("input", input, 1, "[rows, ...]")
    _check_indices(indices)
    return input[indices]


def index_put_first_axis(values, indices, first_axis_dim):
    """Zeros [first_axis_dim, ...] with `values` in the rows of `indices`."""
    _check("values", values, 1, "[rows, ...]")
    _check_indices(indices)
    if values.shape[0] != indices.shape[0]:
        raise ValueError(f"indices: has {indices.shape[0]} rows and values {values.shape[0]}; they must be equally many.")
    output = values.new_zeros((_core.count("first_axis_dim", first_axis_dim), *values.shape[1:]))
    return output.index_put((indices,), values)


def index_first_axis_residual(input, indices):
    """index_first_axis(), and the tensor that it read."""
    return index_first_axis(input, indices), input


def _ends(lengths):
    """cu_seqlens [batch + 1] int32, and the longest as an int, of lengths [batch] int32."""
    longest = int(lengths.max()) if lengths.numel() else 0
    return torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)), longest


def unpad_input(hidden_states, attention_mask, unused_mask=None):
    """[batch, seqlen, ...] and its mask [batch, seqlen] (nonzero: a token) to the tokens end to end.

    Returns tokens [total, ...], indices of them [total] in the flattened batch, cu_seqlens [batch + 1]
    int32, the longest length as an int, and seqused [batch] int32. Positions of unused_mask are kept
    as rows, but not counted by seqused.
    """
    _check_padded(hidden_states, "attention_mask", attention_mask)
    if unused_mask is not None:
        _check_padded(hidden_states, "unused_mask", unused_mask)
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    seqused = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(kept.flatten(), as_tuple=False).flatten()
    return hidden_states.flatten(0, 1)[indices], indices, *_ends(lengths), seqused


def pad_input(hidden_states, indices, batch, seqlen):
    """The inverse: tokens [total, ...] to [batch, seqlen, ...], zeros where there is none."""
    _check("hidden_states", hidden_states, 1, "[total, ...]")
    batch, seqlen = _core.count("batch", batch), _core.count("seqlen", seqlen)
    padded = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return padded.unflatten(0, (batch, seqlen))


def unpad_input_for_concatenated_sequences(hidden_states, attention_mask_in_length):
    """unpad_input() of rows that hold several sequences one after another, whose lengths stand first in
    attention_mask_in_length [batch, seqlen], zeros behind them."""
    lengths = attention_mask_in_length
    _check_padded(hidden_states, "attention_mask_in_length", lengths)
    places = torch.arange(lengths.shape[1], device=lengths.device)
    kept = places < lengths.sum(-1, keepdim=True)
    indices = torch.nonzero(kept.flatten(), as_tuple=False).flatten()
    starts, longest = _ends(lengths[lengths > 0].to(torch.int32))
    return hidden_states.flatten(0, 1)[indices], indices, starts, longest


def __getattr__(name):
    """rearrange and repeat of einops, which is a requirement of flash-attn and not of this library: some import them from
    here."""
    if name in ("rearrange", "repeat"):
        import einops

        return getattr(einops, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
