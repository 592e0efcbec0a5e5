"""What the flash-attn interfaces share: their conventions turned into arguments of sirdar.torch."""

import torch

from ..torch import attention
from .flash_attn.layers.rotary import rotate


def refuse(name, instead):
    """An argument of the other library that this one does not compute."""
    raise NotImplementedError(f"{name}: is not supported by this library; {instead}")


def window_of(window_size):
    """The options of a window given as a pair of ints, a list or a tensor; a negative side has no bound."""
    left, right = int(window_size[0]), int(window_size[1])
    return {"window_left": None if left < 0 else left, "window_right": None if right < 0 else right}


def whole(length):
    """A length given as an int or as a tensor of one."""
    return int(length) if isinstance(length, torch.Tensor) else length


def check_packed(name, tensor, axis, count, shape):
    if not isinstance(tensor, torch.Tensor) or tensor.dim() <= -axis or tensor.shape[axis] != count:
        given = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise ValueError(f"{name}: is {given}; {shape} is needed.")


def lse_product(dout, out):
    """The rows' dot products of dout and out, fp32 [batch, num_heads_q, seqlen_q] (ragged: [num_heads_q,
    total_q]), which FlashAttention's backward hands out as softmax_d."""
    return (dout.float() * out.float()).sum(-1).transpose(-1, -2)


def _lengths(cache_seqlens, batch, device):
    if cache_seqlens is None:
        return None
    if isinstance(cache_seqlens, int):
        return torch.full((batch,), cache_seqlens, dtype=torch.int32, device=device)
    return cache_seqlens


def _check_room(lengths, added, capacity, page_table):
    """Appending must not pass the end of the cache. On a GPU asking waits for it: that is done for pages, as
    FlashAttention does, and not while a stream is captured."""
    if lengths.is_cuda and (page_table is None or torch.cuda.is_current_stream_capturing()):
        return
    longest = int(lengths.max()) + added if lengths.numel() else 0
    if longest > capacity or (lengths.numel() and int(lengths.min()) < 0):
        what = "block_table" if page_table is not None else "k_cache"
        raise RuntimeError(
            f"{what}: holds {capacity} keys a sequence, and cache_seqlens with the {added} new keys "
            f"come to {longest}; allocate more of it."
        )


def _append(cache, new, rows, positions, page_table):
    """Writes new [batch, seqlen_new, heads, dim] at positions [batch, seqlen_new] of a cache, in place."""
    if page_table is None:
        cache[rows[:, None], positions] = new.to(cache.dtype)
        return
    page_size = cache.shape[1]
    pages = page_table.gather(1, positions // page_size).long()
    cache[pages, positions % page_size] = new.to(cache.dtype)


@torch.no_grad()
def with_kvcache(
    q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens,
    cache_seqlens, cache_batch_idx, cache_leftpad, page_table, softmax_scale, causal, window_size,
    chunk_size, softcap,
    alibi_slopes=None, sink=None,
):  # fmt: skip
    """The decoding call of both interfaces: appends to the cache, attends to it; gives (out, lse), without
    gradients.

    q [batch, seqlen_q, num_heads_q, head_dim], caches [batch_cache, seqlen_cache, num_heads_kv, dim] or
    pages [num_pages, page_size, num_heads_kv, dim] with page_table [batch, max_pages] int32.
    """
    if page_table is not None and (cache_batch_idx is not None or cache_leftpad is not None):
        refuse("cache_batch_idx, cache_leftpad with pages", "put the wanted pages into the table")
    batch, device, window = q.shape[0], q.device, window_of(window_size)
    lengths = _lengths(cache_seqlens, batch, device)
    rows = torch.arange(batch, device=device) if cache_batch_idx is None else cache_batch_idx.long()
    if (k is None) != (v is None):
        raise ValueError("k, v: one is given without the other; pass both new keys and new values.")
    if (rotary_cos is None) != (rotary_sin is None):
        raise ValueError("rotary_cos, rotary_sin: one is given without the other; pass both.")
    if rotary_cos is not None and k is None:
        raise ValueError("rotary_cos: is given without k; new keys are what it turns.")
    if k is not None:
        if lengths is None:
            raise ValueError(
                "cache_seqlens: is needed where k and v are appended; pass the lengths."
            )
        capacity = k_cache.shape[1] * (1 if page_table is None else page_table.shape[1])
        _check_room(lengths, k.shape[1], capacity, page_table)
        start = lengths.long()[:, None]
        positions = start + torch.arange(k.shape[1], device=device)
        if rotary_cos is not None:
            turned = start if rotary_seqlens is None else rotary_seqlens.long()[:, None]
            at = turned + torch.arange(k.shape[1], device=device)
            k = rotate(k, rotary_cos, rotary_sin, at, rotary_interleaved)
            # Without a causal mask or a window every query stands at the end of the cache.
            step = torch.arange(q.shape[1], device=device)
            at = turned + (
                step
                if causal or any(side is not None for side in window.values())
                else torch.zeros_like(step)
            )
            q = rotate(q, rotary_cos, rotary_sin, at, rotary_interleaved)
        _append(k_cache, k, rows, positions, page_table)
        _append(v_cache, v, rows, positions, page_table)
        lengths = lengths + k.shape[1]
    arguments = {}
    if cache_batch_idx is not None:
        # A row of the cache is one page of the whole length: nothing is copied.
        page_table = cache_batch_idx.to(torch.int32)[:, None]
        if lengths is None:
            lengths = torch.full((batch,), k_cache.shape[1], dtype=torch.int32, device=device)
    if cache_leftpad is not None:
        arguments = {
            "mask_mod": "k >= leftpad[b]",
            "tensors": {"leftpad": cache_leftpad.to(torch.int32)},
        }
    return attention(
        q, k_cache, v_cache, softmax_scale=softmax_scale, causal=causal, chunk_size=chunk_size,
        softcap=softcap, alibi=alibi_slopes, sink=sink, page_table=page_table,
        seqused_k=None if lengths is None else lengths.to(torch.int32),
        return_lse=True, **window, **arguments,
    )  # fmt: skip
