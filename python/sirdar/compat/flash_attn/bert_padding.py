"""Between padded batches and sequences that lie end to end, under FlashAttention's names."""

import torch


def index_first_axis(input, indices):
    """Rows of the first axis: [rows, ...] -> [len(indices), ...]."""
    return input[indices]


def index_put_first_axis(values, indices, first_axis_dim):
    """Zeros [first_axis_dim, ...] with `values` in the rows of `indices`."""
    output = values.new_zeros((first_axis_dim, *values.shape[1:]))
    return output.index_put((indices,), values)


def index_first_axis_residual(input, indices):
    """index_first_axis(), and the tensor that it read."""
    return input[indices], input


def unpad_input(hidden_states, attention_mask, unused_mask=None):
    """[batch, seqlen, ...] and its mask [batch, seqlen] (nonzero: a token) to the tokens end to end.

    Returns tokens [total, ...], indices of them [total] in the flattened batch, cu_seqlens [batch + 1]
    int32, the longest length as an int, and seqused [batch] int32. Positions of unused_mask are kept
    as rows, but not counted by seqused.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    seqused = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(kept.flatten(), as_tuple=False).flatten()
    max_seqlen = int(lengths.max()) if lengths.numel() else 0
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[indices], indices, cu_seqlens, max_seqlen, seqused


def pad_input(hidden_states, indices, batch, seqlen):
    """The inverse: tokens [total, ...] to [batch, seqlen, ...], zeros where there is none."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(
        0, (batch, seqlen)
    )


def unpad_input_for_concatenated_sequences(hidden_states, attention_mask_in_length):
    """unpad_input() of rows that hold several sequences one after another, whose lengths stand first in
    attention_mask_in_length [batch, seqlen], zeros behind them."""
    lengths = attention_mask_in_length
    places = torch.arange(lengths.shape[1], device=lengths.device)
    kept = places < lengths.sum(-1, keepdim=True)
    indices = torch.nonzero(kept.flatten(), as_tuple=False).flatten()
    lengths = lengths[lengths > 0].to(torch.int32)
    max_seqlen = int(lengths.max()) if lengths.numel() else 0
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[indices], indices, cu_seqlens, max_seqlen
