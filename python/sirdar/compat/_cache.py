"""The decoding call of both flash-attn interfaces: new keys go into a cache, queries attend to it."""

import operator

import torch
from torch.autograd import forward_ad

from .. import _problem
from ..torch import _core, attention
from ..torch._attention import PLAIN_TYPES, check_memory, check_tensor
from ._common import check_range, check_starts, ends, is_traced, is_unread, real_or_none, whole, window_of
from ._memory import apart_from, check_written
from ._rotate import rotate
from ._words import in_words


def _check_numbers(name, tensor, axes, device):
    """Whole numbers of `axes` axes, as torch.int32 or torch.int64."""
    check_tensor(name, tensor, device)
    if tensor.dtype not in (torch.int32, torch.int64) or tensor.dim() != axes:
        raise ValueError(
            f"{name}: is {tensor.dtype} of shape {tuple(tensor.shape)}; torch.int32 of {axes} axes is needed."
        )
    check_memory(name, tensor)


def _lengths(cache_seqlens, batch, device):
    if cache_seqlens is None:
        return None
    if not isinstance(cache_seqlens, torch.Tensor):
        length = _core.whole("cache_seqlens", cache_seqlens)
        if not 0 <= length < 2**31:
            raise ValueError(f"cache_seqlens: {_problem.said(length)} is no length of a cache; pass how many keys it holds.")
        return torch.full((batch,), length, dtype=torch.int32, device=device)
    check_tensor("cache_seqlens", cache_seqlens, device)
    if tuple(cache_seqlens.shape) != (batch,) or cache_seqlens.dtype not in (
        torch.int32,
        torch.int64,
    ):
        raise ValueError(
            f"cache_seqlens: is {cache_seqlens.dtype} of shape {tuple(cache_seqlens.shape)}; torch.int32 "
            f"of shape {(batch,)} is needed, or an int."
        )
    check_memory("cache_seqlens", cache_seqlens)
    if cache_seqlens.dtype == torch.int64:
        check_range("cache_seqlens", cache_seqlens, 2**31)
    return cache_seqlens


def _check_room(lengths, added, capacity, table_name):
    """Appending must not pass the end of the cache. On a GPU asking waits for it: that is done for pages, as
    FlashAttention does, and not while a stream is captured."""
    if is_traced() or type(lengths) not in PLAIN_TYPES or lengths.numel() == 0:
        return
    if lengths.is_cuda and (table_name is None or torch.cuda.is_current_stream_capturing()):
        return
    has_one_count = isinstance(added, int)  # for sums, Python's ints have no end
    held = [*ends(lengths)] if has_one_count else lengths.tolist()
    counts = [added] * len(held) if has_one_count else added.tolist()
    longest = max(map(operator.add, held, counts))
    if min(held) < 0:
        raise ValueError(
            f"cache_seqlens: holds {min(held)}; lengths from 0 to {capacity} less the new keys are allowed."
        )
    if longest > capacity:
        raise RuntimeError(
            f"{table_name or 'k_cache'}: holds {capacity} keys a sequence, and cache_seqlens with the new keys come to "
            f"{longest}; allocate more of it."
        )


def _check_pages(name, table, lengths, added, page_size, num_pages):
    """table [batch, max_pages]: the pages of the first lengths + added keys must exist. A GPU is not asked."""
    if is_unread(table) or table.numel() == 0:
        return
    lowest, highest = ends(table)
    if lowest >= 0 and highest < num_pages:
        return  # else what is not read may hold anything
    is_read = torch.arange(table.shape[1], device=table.device) * page_size < (lengths + added)[:, None]
    wrong = is_read & ((table < 0) | (table >= num_pages))
    if wrong.any():
        raise ValueError(
            f"{name}: holds {int(table[wrong][0])}; numbers from 0 to {num_pages - 1} are allowed."
        )


def _rows_of_table(page_table, cache_batch_idx):
    """The pages of the sequences that a batch is made of."""
    check_range("cache_batch_idx", cache_batch_idx, page_table.shape[0])
    return page_table[cache_batch_idx.long()]


class _Rows:
    """The rows of [batch, seqlen, ...], or of [total, ...] with prefix sums: of which sequence each is, where
    it stands in that, and how many a sequence has."""

    def __init__(self, tensor, starts):
        device = tensor.device
        if starts is None:
            self.sequence = torch.arange(tensor.shape[0], device=device)[:, None]
            self.place = torch.arange(tensor.shape[1], device=device)[None]
            self.count = tensor.shape[1]
            return
        row, first = torch.arange(tensor.shape[0], device=device), starts.long()
        self.sequence = torch.searchsorted(first[1:], row, right=True)
        self.place = row - first[self.sequence]
        self.count = starts.diff()


_APPENDED = frozenset(
    (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2)
)


def _check_new(name, new, cache_name, cache, leading):
    """What is appended to a cache."""
    check_tensor(name, new, cache.device)
    wanted = (*leading, *cache.shape[2:])
    if tuple(new.shape) != wanted:
        raise ValueError(f"{name}: has shape {tuple(new.shape)}; {cache_name} needs {wanted}.")
    if new.dtype not in _APPENDED:
        raise ValueError(f"{name}: has dtype {new.dtype}; that of {cache_name} is needed.")


def _check_appended(k_cache, v_cache, k, v, lengths, starts, pages):
    """New keys and values, and that the caches have room for them, each in a place of its own; gives their _Rows, and
    the places. pages: {name: table [batch, max_pages]} of a cache in pages, or empty."""
    batch, device = lengths.shape[0], lengths.device
    rank = 4 if starts is None else 3
    check_tensor("k", k, device)
    if k.dim() != rank:
        raise ValueError(f"k: has {k.dim()} axes; {rank} are needed.")
    for name, table in pages.items():
        check_tensor(name, table, device)
        if table.dim() != 2 or table.shape[0] != batch:
            raise ValueError(f"{name}: must have one row for each of the {batch} sequences.")
    if starts is not None:
        check_starts("cu_seqlens_k_new", starts, batch, k.shape[0], device)
    leading = (batch, k.shape[1]) if starts is None else k.shape[:1]
    _check_new("k", k, "k_cache", k_cache, leading)
    _check_new("v", v, "v_cache", v_cache, leading)
    check_written({"k_cache": k_cache, "v_cache": v_cache})
    rows, capacity = _Rows(k, starts), k_cache.shape[1] * next((table.shape[1] for table in pages.values()), 1)
    name = next((name for name in pages if name != "cache_batch_idx"), None)
    _check_room(lengths, rows.count, capacity, name)
    page_size, table = k_cache.shape[1], next(iter(pages.values()), None)
    for name, table in pages.items():
        _check_pages(name, table, lengths, rows.count, page_size, k_cache.shape[0])
    places = _places(rows, lengths, table, page_size)
    if table is not None and not is_unread(table) and not (batch == 1 and k.shape[-3] <= page_size):
        _check_places(name, *places, page_size)
    return rows, places


def _check_places(name, pages, positions, page_size):
    """Of two new keys in one place of the cache either may stay there."""
    places = (pages * page_size + positions).flatten().tolist()
    if len(set(places)) == len(places):
        return
    places.sort()
    twice = next(place for place, other in zip(places, places[1:]) if place == other)
    page, place = divmod(twice, page_size)
    what = "row" if name == "cache_batch_idx" else "page"
    raise ValueError(
        f"{name}: puts two new keys at position {place} of {what} {page}; each sequence that is appended to needs "
        f"a {what} of its own there."
    )


def _places(rows, lengths, table, page_size):
    """(page, position in it) of each new key; table [batch, max_pages], None for a row of the cache each."""
    positions = lengths.long()[rows.sequence] + rows.place
    if table is None:
        return rows.sequence, positions
    return table.long()[rows.sequence, positions // page_size], positions % page_size


def _as_bytes(tensor):
    """torch does not index what has 8 bits and a fraction everywhere."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor


def _append(cache, new, places):
    """Writes new to places (pages, positions) of a cache."""
    _as_bytes(cache)[places] = _as_bytes(new.to(cache.dtype))


_checked = set()  # kinds of calls whose plan has been made
_MAX_CHECKED = 512


def _kind(value):
    """What a plan depends on: layout of a tensor, value of an option."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.device, type(value)
    return type(value), value


def _check_call(attend, q, k_cache, v_cache, lengths, options, more):
    """Everything that attention() refuses is refused here, before a cache is written to. Once for each kind
    of call; without keys, it computes next to nothing."""
    if torch.compiler.is_compiling():
        return
    kind = q.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    given = (q, k_cache, v_cache, *options.values(), *more.get("tensors", {}).values())
    try:
        key = (dtype, *more, *map(_kind, given))
        if key in _checked and forward_ad._current_level < 0:
            return
    except (RuntimeError, TypeError):  # what is no option, or a tensor without strides: attention() says so
        key = None
    none = torch.zeros_like(lengths, dtype=torch.int32)
    attend(q, k_cache, v_cache, seqused_k=none, return_lse=True, **options, **more)
    if len(_checked) >= _MAX_CHECKED:
        _checked.clear()
    if key is not None:
        _checked.add(key)


def _turned(q, k, cos, sin, interleaved, start, is_causal, rows_q, rows_k):
    """q and k turned from position start [batch] on. Without a causal mask or a window every query stands
    at the end of the cache."""
    for name, table in (("rotary_cos", cos), ("rotary_sin", sin)):
        check_tensor(name, table, q.device)
        if not table.is_floating_point():
            raise ValueError(f"{name}: has dtype {table.dtype}; a floating one is needed.")
        check_memory(name, table)
    if cos.dim() != 2 or cos.shape != sin.shape or 2 * cos.shape[1] > q.shape[-1]:
        raise ValueError(
            f"rotary_cos, rotary_sin: have shapes {tuple(cos.shape)} and {tuple(sin.shape)}; both must be "
            f"[positions, rotary_dim / 2], rotary_dim at most {q.shape[-1]}."
        )
    at_q, at_k = (start.long()[rows.sequence] for rows in (rows_q, rows_k))
    at_q, at_k = at_q + rows_q.place * is_causal, at_k + rows_k.place
    if not is_unread(start):
        last = max((ends(at)[1] for at in (at_q, at_k) if at.numel()), default=-1)
        if last >= cos.shape[0]:
            raise ValueError(
                f"rotary_cos: has {cos.shape[0]} positions, and the new keys come to position {last}; pass "
                "a longer table."
            )
    return rotate(q, cos, sin, at_q, interleaved), rotate(k, cos, sin, at_k, interleaved)


def _of_query_heads(name, scale, q, batch):
    """scale [batch, num_heads_kv] as fp32 [batch, num_heads_q]."""
    check_tensor(name, scale, q.device)
    check_memory(name, scale)
    heads = scale.shape[-1] if scale.dim() == 2 else 0
    if not heads or scale.shape[0] != batch or q.shape[-2] % heads:
        raise ValueError(
            f"{name}: has shape {tuple(scale.shape)}; [batch, num_heads_kv] is needed, batch {batch}."
        )
    return scale.float().repeat_interleave(q.shape[-2] // heads, dim=1)


def _check_leftpad(leftpad, batch, k_cache, pages):
    """How many keys at the beginning of each sequence are padding. A GPU is not asked."""
    if tuple(leftpad.shape) != (batch,) or leftpad.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"cache_leftpad: is {leftpad.dtype} of shape {tuple(leftpad.shape)}; torch.int32 of shape {(batch,)} is "
            "needed."
        )
    check_memory("cache_leftpad", leftpad)
    capacity = k_cache.shape[1] * next((table.shape[1] for table in pages.values()), 1)
    check_range("cache_leftpad", leftpad, capacity + 1, ", the keys that the cache has room for,")


def _check_rotary_seqlens(seqlens, cos, batch, device):
    """Where in the rotary tables the new keys of each sequence begin, [batch], or None. A GPU is not asked."""
    if seqlens is None:
        return
    if cos is None:
        raise ValueError("rotary_seqlens: is given without rotary_cos; pass the tables too.")
    _check_numbers("rotary_seqlens", seqlens, 1, device)
    if len(seqlens) != batch:
        raise ValueError(f"rotary_seqlens: has shape {tuple(seqlens.shape)}; {(batch,)} is needed.")
    check_range("rotary_seqlens", seqlens, 2**31)


class Descale:
    """What q, k and v are multiplied by, fp32 [batch, num_heads_kv] each or None. No copy of them is made:
    those of q and k multiply the scores, before a soft cap, and that of v the output."""

    def __init__(self, q, batch, q_descale, k_descale, v_descale):
        self.scores = self.values = None
        for name, scale in (("q_descale", q_descale), ("k_descale", k_descale)):
            if scale is not None:
                factor = _of_query_heads(name, scale, q, batch)
                self.scores = factor if self.scores is None else self.scores * factor
        if v_descale is not None:
            self.values = _of_query_heads("v_descale", v_descale, q, batch)

    def options(self, softcap):
        """Those of attention()."""
        if self.scores is None:
            return {"softcap": softcap}
        score = "score * descale[b, h]"
        if softcap:
            cap = repr(_problem.switch("softcap", _core.real("softcap", softcap)))
            score = f"{cap} * tanh({score} / {cap})"
        return {"score_mod": score, "tensors": {"descale": self.scores.contiguous()}}

    def of_output(self, out, starts):
        if self.values is None:
            return out
        factor = self.values[_Rows(out, starts).sequence][..., None]
        return (out * factor).to(out.dtype)


# attention() in the words of a call whose caches are rows, or pages by the table of that name.
_ATTEND = {
    name: in_words(attention, seqused_k="cache_seqlens", k="k_cache", v="v_cache", page_table=name)
    for name in (None, "block_table", "page_table", "cache_batch_idx")
}


@torch.no_grad()
def with_kvcache(
    q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens,
    cache_seqlens, cache_batch_idx, cache_leftpad, page_table, softmax_scale, causal, window_size,
    chunk_size, softcap, alibi_slopes=None, sink=None, cu_seqlens_q=None, max_seqlen_q=None,
    cu_seqlens_k_new=None, descale=(None, None, None), table_name="block_table",
):  # fmt: skip
    """The decoding call of both interfaces: appends to the cache, attends to it; gives (out, lse), without
    gradients.

    q [batch, seqlen_q, num_heads_q, head_dim], caches [batch_cache, seqlen_cache, num_heads_kv, dim] or
    pages [num_pages, page_size, num_heads_kv, dim] with page_table [batch, max_pages] int32. q and the new
    keys may lie end to end, with cu_seqlens_q and cu_seqlens_k_new [batch + 1] int32.
    """
    if (k is None) != (v is None):
        raise ValueError("k, v: one is given without the other; pass both new keys and new values.")
    if (rotary_cos is None) != (rotary_sin is None):
        raise ValueError("rotary_cos, rotary_sin: one is given without the other; pass both.")
    if rotary_cos is not None and k is None:
        raise ValueError("rotary_cos: is given without k; new keys are what it turns.")
    if k is not None and cache_seqlens is None:
        raise ValueError("cache_seqlens: is needed where k and v are appended; pass the lengths.")
    rotary_interleaved, causal = _core.flag("rotary_interleaved", rotary_interleaved), _core.flag("causal", causal)
    chunk_size = _problem.count("attention_chunk", whole("attention_chunk", chunk_size))
    check_tensor("q", q)
    axes = 4 if cu_seqlens_q is None else 3
    if q.dim() != axes:
        raise ValueError(f"q: has {q.dim()} axes; {axes} are needed.")
    device, window = q.device, window_of(window_size)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        check_tensor(name, cache, device)
        if cache.dim() != 4:
            raise ValueError(f"{name}: has {cache.dim()} axes; 4 are needed.")
    if cu_seqlens_q is not None:
        longest = check_starts("cu_seqlens_q", cu_seqlens_q, None, q.shape[0], device)
        max_seqlen_q = whole("max_seqlen_q", max_seqlen_q)
        if longest and max_seqlen_q is not None and max_seqlen_q < longest:
            raise ValueError(
                f"max_seqlen_q: is {max_seqlen_q}, and a sequence of cu_seqlens_q has {longest} rows; pass the longest."
            )
    batch = q.shape[0] if cu_seqlens_q is None else len(cu_seqlens_q) - 1
    lengths = _lengths(cache_seqlens, batch, device)
    _check_rotary_seqlens(rotary_seqlens, rotary_cos, batch, device)
    pages = {}
    if cache_batch_idx is not None:
        _check_numbers("cache_batch_idx", cache_batch_idx, 1, device)
    if page_table is not None:
        _check_numbers(table_name, page_table, 2, device)
        if cache_batch_idx is not None:
            page_table = _rows_of_table(page_table, cache_batch_idx)
        pages = {table_name: page_table}
    elif cache_batch_idx is not None:
        if cache_batch_idx.dtype == torch.int64:
            check_range("cache_batch_idx", cache_batch_idx, k_cache.shape[0])
        # A row of the cache is one page of the whole length: nothing is copied.
        pages = {"cache_batch_idx": cache_batch_idx.to(torch.int32).reshape(-1, 1)}
    if lengths is None and pages:
        most = k_cache.shape[1] * next(iter(pages.values())).shape[1]
        lengths = torch.full((batch,), most, dtype=torch.int32, device=device)
    descale = Descale(q, batch, *descale)
    more = descale.options(softcap)
    if cache_leftpad is not None:
        check_tensor("cache_leftpad", cache_leftpad, device)
        _check_leftpad(cache_leftpad, batch, k_cache, pages)
        more["mask_mod"] = "k >= leftpad[b]"
        if chunk_size > 0:  # chunks are counted from the first key that is none of the padding
            more["mask_mod"] += (
                f" && q_pos >= leftpad[b] && (q_pos - leftpad[b]) / {chunk_size} == (k - leftpad[b]) / {chunk_size}"
            )
            chunk_size = 0
        more["tensors"] = more.get("tensors", {}) | {"leftpad": cache_leftpad.to(torch.int32)}
    options = {
        "softmax_scale": real_or_none("softmax_scale", softmax_scale),
        "softcap": _core.real("softcap", more.pop("softcap", 0.0)), "chunk_size": chunk_size,
        "causal": causal, "alibi": alibi_slopes, "sink": sink,
        "page_table": next(iter(pages.values()), None), **window,
    }  # fmt: skip
    if cu_seqlens_q is not None:
        options |= {"cu_seqlens_q": cu_seqlens_q, "seqlen_q": max_seqlen_q}
    attend = _ATTEND[next(iter(pages), None)]
    if k is not None:
        rows, places = _check_appended(k_cache, v_cache, k, v, lengths, cu_seqlens_k_new, pages)
        if rotary_cos is not None:
            start = lengths if rotary_seqlens is None else rotary_seqlens
            is_causal = causal or any(side is not None for side in window.values())
            q, k = _turned(
                q, k, rotary_cos, rotary_sin, rotary_interleaved, start, is_causal,
                _Rows(q, cu_seqlens_q), rows,
            )  # fmt: skip
        given = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v, "alibi_slopes": alibi_slopes, "sink": sink}
        for name, tensor in given.items():
            if isinstance(tensor, torch.Tensor):
                check_memory(name, tensor)
        _check_call(attend, q, k_cache, v_cache, lengths, options, more)
        k, v = (apart_from(new, (k_cache, v_cache)) for new in (k, v))
        _append(k_cache, k, places)
        _append(v_cache, v, places)
        lengths = lengths + rows.count
    used = None if lengths is None else lengths.to(torch.int32)
    out, lse = attend(q, k_cache, v_cache, seqused_k=used, return_lse=True, **options, **more)
    return descale.of_output(out, cu_seqlens_q), lse
