"""What the flash-attn interfaces share: their conventions turned into arguments of sirdar.torch."""

import operator

import torch
from torch.autograd import forward_ad

from ..torch import _core, attention
from ..torch._attention import check_tensor
from .flash_attn.layers.rotary import rotate


def refuse(name, instead):
    """An argument of the other library that this one does not compute."""
    raise NotImplementedError(f"{name}: is not supported by this library; {instead}")


def window_of(window_size):
    """The options of a window given as a pair of ints, a list or a tensor; a negative side has no bound."""
    try:
        left, right = (operator.index(side) for side in window_size)
    except (TypeError, ValueError):
        raise ValueError(
            f"window_size: is {window_size!r}; two whole numbers (left, right) are needed, -1 for a side "
            "without a bound."
        ) from None
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
    check_tensor("cache_seqlens", cache_seqlens, device)
    if tuple(cache_seqlens.shape) != (batch,) or cache_seqlens.dtype not in (
        torch.int32,
        torch.int64,
    ):
        raise ValueError(
            f"cache_seqlens: is {cache_seqlens.dtype} of shape {tuple(cache_seqlens.shape)}; torch.int32 "
            f"of shape {(batch,)} is needed, or an int."
        )
    return cache_seqlens


def _check_room(lengths, added, capacity, page_table):
    """Appending must not pass the end of the cache. On a GPU asking waits for it: that is done for pages, as
    FlashAttention does, and not while a stream is captured."""
    if lengths.is_cuda and (page_table is None or torch.cuda.is_current_stream_capturing()):
        return
    if lengths.numel() == 0:
        return
    shortest, longest = int(lengths.min()), int(lengths.max()) + added
    if shortest < 0:
        raise ValueError(
            f"cache_seqlens: holds {shortest}; lengths from 0 to {capacity - added} are allowed."
        )
    if longest > capacity:
        what = "block_table" if page_table is not None else "k_cache"
        raise RuntimeError(
            f"{what}: holds {capacity} keys a sequence, and cache_seqlens with the {added} new keys "
            f"come to {longest}; allocate more of it."
        )


def _check_pages(name, table, lengths, page_size, num_pages):
    """table [batch, max_pages]: the pages of the first `lengths` keys must exist. A GPU is not asked."""
    if table.is_cuda or table.numel() == 0:
        return
    lowest, highest = table.aminmax()
    if lowest >= 0 and highest < num_pages:
        return  # else what is not read may hold anything
    is_read = torch.arange(table.shape[1]) * page_size < lengths[:, None]
    wrong = is_read & ((table < 0) | (table >= num_pages))
    if wrong.any():
        raise ValueError(
            f"{name}: holds {int(table[wrong][0])}; numbers from 0 to {num_pages - 1} are allowed."
        )


def _check_new(name, new, cache_name, cache, batch, count):
    """What is appended to a cache, and that the cache can be written to row by row."""
    check_tensor(name, new, cache.device)
    wanted = (batch, count, *cache.shape[2:])
    if tuple(new.shape) != wanted:
        raise ValueError(f"{name}: has shape {tuple(new.shape)}; {cache_name} needs {wanted}.")
    if not new.is_floating_point():
        raise ValueError(f"{name}: has dtype {new.dtype}; that of {cache_name} is needed.")
    if any(size > 1 and stride == 0 for size, stride in zip(cache.shape, cache.stride())):
        raise ValueError(
            f"{cache_name}: is expanded, several elements lie in one place; pass a copy to append to."
        )


def _check_appended(k_cache, v_cache, k, v, lengths, pages):
    """New keys and values, and that the caches have room for them. pages: {name: table [batch, max_pages]} of
    a cache in pages, or empty."""
    batch, device = lengths.shape[0], lengths.device
    for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache), ("k", k)):
        check_tensor(name, tensor, device)
        if tensor.dim() != 4:
            raise ValueError(f"{name}: has {tensor.dim()} axes; four are needed.")
    for name, table in pages.items():
        check_tensor(name, table, device)
        if table.dim() != 2 or table.shape[0] != batch:
            raise ValueError(f"{name}: must have one row for each of the {batch} sequences.")
    count, page_table = k.shape[1], pages.get("block_table")
    _check_new("k", k, "k_cache", k_cache, batch, count)
    _check_new("v", v, "v_cache", v_cache, batch, count)
    capacity = k_cache.shape[1] * (1 if page_table is None else page_table.shape[1])
    _check_room(lengths, count, capacity, page_table)
    for name, table in pages.items():
        _check_pages(name, table, lengths + count, k_cache.shape[1], k_cache.shape[0])


def _append(cache, new, rows, positions, page_table):
    """Writes new [batch, seqlen_new, heads, dim] at positions [batch, seqlen_new] of a cache, in place."""
    if page_table is None:
        cache[rows[:, None], positions] = new.to(cache.dtype)
        return
    page_size = cache.shape[1]
    pages = page_table.gather(1, positions // page_size).long()
    cache[pages, positions % page_size] = new.to(cache.dtype)


_checked = set()  # kinds of calls whose plan has been made
_MAX_CHECKED = 512


def _kind(value):
    """What a plan depends on: layout of a tensor, value of an option."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.device, type(value)
    return type(value), value


def _check_call(q, k_cache, v_cache, lengths, options, more):
    """Everything that attention() refuses is refused here, before a cache is written to. Once for each kind
    of call; without keys, it computes next to nothing."""
    if torch.compiler.is_compiling():
        return
    kind = q.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    given = (q, k_cache, v_cache, *options.values(), *more.get("tensors", {}).values())
    key = (dtype, *more, *map(_kind, given))
    if key in _checked and forward_ad._current_level < 0:
        return
    none = torch.zeros_like(lengths, dtype=torch.int32)
    attention(q, k_cache, v_cache, seqused_k=none, return_lse=True, **options, **more)
    if len(_checked) >= _MAX_CHECKED:
        _checked.clear()
    _checked.add(key)


def _turned(q, k, cos, sin, interleaved, start, is_causal):
    """q and k turned from position start [batch] on. Without a causal mask or a window every query stands
    at the end of the cache."""
    for name, table in (("rotary_cos", cos), ("rotary_sin", sin), ("rotary_seqlens", start)):
        check_tensor(name, table, q.device)
    if cos.dim() != 2 or cos.shape != sin.shape or 2 * cos.shape[1] > q.shape[-1]:
        raise ValueError(
            f"rotary_cos, rotary_sin: have shapes {tuple(cos.shape)} and {tuple(sin.shape)}; both must be "
            f"[positions, rotary_dim / 2], rotary_dim at most {q.shape[-1]}."
        )
    last = max(k.shape[1], q.shape[1] if is_causal else 1) - 1
    if not start.is_cuda and start.numel() and int(start.max()) + last >= cos.shape[0]:
        raise ValueError(
            f"rotary_cos: has {cos.shape[0]} positions, and the new keys come to position "
            f"{int(start.max()) + last}; pass a longer table."
        )
    start, step = start.long()[:, None], torch.arange(q.shape[1], device=q.device)
    at_q = start + (step if is_causal else torch.zeros_like(step))
    at_k = start + torch.arange(k.shape[1], device=q.device)
    return rotate(q, cos, sin, at_q, interleaved), rotate(k, cos, sin, at_k, interleaved)


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
    if (k is None) != (v is None):
        raise ValueError("k, v: one is given without the other; pass both new keys and new values.")
    if (rotary_cos is None) != (rotary_sin is None):
        raise ValueError("rotary_cos, rotary_sin: one is given without the other; pass both.")
    if rotary_cos is not None and k is None:
        raise ValueError("rotary_cos: is given without k; new keys are what it turns.")
    if k is not None and cache_seqlens is None:
        raise ValueError("cache_seqlens: is needed where k and v are appended; pass the lengths.")
    check_tensor("q", q)
    batch, device, window = q.shape[0], q.device, window_of(window_size)
    lengths = _lengths(cache_seqlens, batch, device)
    pages, more = {}, {}
    if page_table is not None:
        pages = {"block_table": page_table}
    elif cache_batch_idx is not None:
        # A row of the cache is one page of the whole length: nothing is copied.
        check_tensor("cache_batch_idx", cache_batch_idx, device)
        pages = {"cache_batch_idx": cache_batch_idx.to(torch.int32).reshape(-1, 1)}
        if lengths is None:
            lengths = torch.full((batch,), k_cache.shape[1], dtype=torch.int32, device=device)
    if cache_leftpad is not None:
        check_tensor("cache_leftpad", cache_leftpad, device)
        leftpad = cache_leftpad.to(torch.int32)
        more = {"mask_mod": "k >= leftpad[b]", "tensors": {"leftpad": leftpad}}
    options = {
        **_core.numbers({"softmax_scale": softmax_scale, "softcap": softcap, "chunk_size": chunk_size}),
        "causal": causal, "alibi": alibi_slopes, "sink": sink,
        "page_table": next(iter(pages.values()), None), **window,
    }  # fmt: skip
    if k is not None:
        _check_appended(k_cache, v_cache, k, v, lengths, pages)
        if rotary_cos is not None:
            start = lengths if rotary_seqlens is None else rotary_seqlens
            is_causal = causal or any(side is not None for side in window.values())
            q, k = _turned(q, k, rotary_cos, rotary_sin, rotary_interleaved, start, is_causal)
        _check_call(q, k_cache, v_cache, lengths, options, more)
        rows = torch.arange(batch, device=device) if page_table is None else None
        rows = rows if cache_batch_idx is None else cache_batch_idx.long()
        positions = lengths.long()[:, None] + torch.arange(k.shape[1], device=device)
        _append(k_cache, k, rows, positions, page_table)
        _append(v_cache, v, rows, positions, page_table)
        lengths = lengths + k.shape[1]
    used = None if lengths is None else lengths.to(torch.int32)
    return attention(q, k_cache, v_cache, seqused_k=used, return_lse=True, **options, **more)
