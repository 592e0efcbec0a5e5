"""S_dmask: the weights with the sign of dropout, FlashAttention-2's aid for tests. Quadratic memory."""

import math
import struct

import torch

_WORD = 0xFFFFFFFF
_BLOCK = 128  # S_dmask is padded to whole blocks


def _product(factor, word):
    """High and low half of a product of two 32-bit words; int64 wraps, the bits are right."""
    product = word * factor
    return (product >> 32) & _WORD, product & _WORD


def _philox(counter, key):
    """Philox4x32-10 on int64 tensors that hold 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _product(0xD2511F53, c0)
        high1, low1 = _product(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3


def _number(value):
    return torch.tensor(value, device="cpu")  # wherever a user has tensors made by default


def _words(value):
    return _number(value & _WORD), _number((value >> 32) & _WORD)


def kept(dropout_p, rng, batch, num_heads, seqlen_q, seqlen_k, device="cpu"):
    """Which weights dropout keeps (docs/semantics.md): bool [batch, num_heads, seqlen_q, seqlen_k]."""
    seed, offset = (value % 2**64 for value in rng.tolist())
    fixed = (*_words(offset), _number(0x44524F50), _number(0))
    key = _philox(fixed, _words(seed))[:2]
    blocks = torch.arange((seqlen_k + 3) // 4, device=device)
    rows = torch.arange(seqlen_q, device=device)[:, None]
    heads = torch.arange(num_heads, device=device)[:, None, None]
    sequences = torch.arange(batch, device=device)[:, None, None, None]
    counter = torch.broadcast_tensors(blocks, rows, heads, sequences)
    bits = torch.stack(_philox(counter, [word.to(device) for word in key]), dim=-1).flatten(-2)
    rounded = struct.unpack("f", struct.pack("f", dropout_p))[0]
    return bits[..., :seqlen_k] >= math.ceil(rounded * 2**32)


def _scores(q, k, options, slopes):
    """Scores of one sequence, -inf where masked: fp32 [num_heads_q, seqlen_q, seqlen_k]."""
    scale = options["softmax_scale"]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * scale
    if options["softcap"]:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    place = torch.arange(q.shape[0], device=q.device)[:, None] + k.shape[0] - q.shape[0]
    distance = place - torch.arange(k.shape[0], device=q.device)
    if slopes is not None:
        scores = scores - slopes[:, None, None] * distance.abs()
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if options["causal"]:
        hidden |= distance < 0
    if options["window_left"] is not None:
        hidden |= distance > options["window_left"]
    if options["window_right"] is not None:
        hidden |= distance < -options["window_right"]
    return scores.masked_fill(hidden, -torch.inf)


def shape_of_weights(num_heads_q, batch, seqlen_q, seqlen_k):
    """That of S_dmask."""
    rows, columns = (-(-length // _BLOCK) * _BLOCK for length in (seqlen_q, seqlen_k))
    return batch, num_heads_q, rows, columns


def signed_weights(
    q, k, rng, options, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None
):
    """exp(score - the row's largest), negative where dropped, in q's dtype: [batch, num_heads_q, seqlen_q,
    seqlen_k], the lengths rounded up to 128. options: those of sirdar.torch.attention."""
    with torch.no_grad():
        if cu_seqlens_q is None:
            queries, keys = list(q), list(k)
        else:
            queries = q.tensor_split(cu_seqlens_q[1:-1].tolist())
            keys = k.tensor_split(cu_seqlens_k[1:-1].tolist())
        longest_q = max_seqlen_q if max_seqlen_q is not None else q.shape[1]
        longest_k = max_seqlen_k if max_seqlen_k is not None else k.shape[1]
        shape = shape_of_weights(q.shape[-2], len(queries), longest_q, longest_k)
        result = q.new_zeros(shape)
        signs = kept(options["dropout_p"], rng, *shape[:2], longest_q, longest_k, q.device)
        slopes = options["alibi"]
        for b, (rows, columns) in enumerate(zip(queries, keys)):
            slope = slopes[b] if slopes is not None and slopes.dim() == 2 else slopes
            scores = _scores(rows, columns, options, slope)
            if columns.shape[0] == 0:
                continue
            largest = scores.amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).min)
            weights = torch.exp(scores - largest)
            size_q, size_k = rows.shape[0], columns.shape[0]
            is_kept = signs[b, :, :size_q, :size_k]
            result[b, :, :size_q, :size_k] = torch.where(is_kept, weights, -weights).to(q.dtype)
        return result
