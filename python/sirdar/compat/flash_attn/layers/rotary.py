"""Rotary position embedding under FlashAttention's name, in plain torch: any device, differentiable."""

import torch

from ....torch import _core
from ....torch._attention import check_memory, check_tensor
from ..._common import check_packed, check_starts, ends, is_unread
from ..._rotate import rotate


def _offsets(seqlen_offsets, batch, device):
    """An int, or [batch] whole numbers on the device."""
    if not isinstance(seqlen_offsets, torch.Tensor) or seqlen_offsets.dim() == 0:
        return _core.count("seqlen_offsets", seqlen_offsets)
    check_tensor("seqlen_offsets", seqlen_offsets, device, "x")
    if tuple(seqlen_offsets.shape) != (batch,) or seqlen_offsets.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"seqlen_offsets: is {seqlen_offsets.dtype} of shape {tuple(seqlen_offsets.shape)}; an int, or torch.int32 "
            f"of shape {(batch,)} is needed."
        )
    check_memory("seqlen_offsets", seqlen_offsets)
    return seqlen_offsets


def _check_floating(name, tensor):
    if not tensor.is_floating_point():
        raise ValueError(f"{name}: has dtype {tensor.dtype}; a floating one is needed.")
    check_memory(name, tensor)


_AXES = {"x": (4,), "qkv": (4, 5), "kv": (5,)}


def _positions(name, x, tables, seqlen_offsets, cu_seqlens=None):
    """Position of each row of x: [batch, seqlen], or [total] with cu_seqlens; tables: {name: cos or sin}, which have
    one for each, as far as a CPU can tell."""
    check_tensor(name, x)
    axes = (3,) if cu_seqlens is not None else _AXES[name]
    if x.dim() not in axes:
        raise ValueError(f"{name}: has shape {tuple(x.shape)}; {' or '.join(map(str, axes))} axes are needed.")
    _check_floating(name, x)
    cos = tables["cos"]
    for of_table, table in tables.items():
        check_tensor(of_table, table, x.device, name)
        if table.dim() != 2 or table.shape != cos.shape or 2 * table.shape[1] > x.shape[-1]:
            raise ValueError(
                f"{of_table}: has shape {tuple(table.shape)}; [positions, rotary_dim / 2], of cos and sin alike, is "
                f"needed, rotary_dim at most {x.shape[-1]}."
            )
        _check_floating(of_table, table)
    if cu_seqlens is None:
        offsets = _offsets(seqlen_offsets, x.shape[0], x.device)
        starts = offsets[:, None] if isinstance(offsets, torch.Tensor) else offsets
        positions = torch.arange(x.shape[1], device=x.device)[None] + starts
    else:
        check_starts("cu_seqlens", cu_seqlens, None, x.shape[0], x.device, (torch.int32, torch.int64), name)
        offsets = _offsets(seqlen_offsets, cu_seqlens.shape[0] - 1, x.device)
        rows, starts = torch.arange(x.shape[0], device=x.device), cu_seqlens.long()
        sequence = torch.searchsorted(starts[1:], rows, right=True)
        positions = rows - starts[sequence] + (offsets[sequence] if isinstance(offsets, torch.Tensor) else offsets)
    if not is_unread(positions) and positions.numel():
        lowest, highest = ends(positions)
        if lowest < 0 or highest >= cos.shape[0]:
            raise ValueError(
                f"cos: has {cos.shape[0]} positions, and the rows have those from {lowest} to {highest}; pass a longer "
                "table, or other seqlen_offsets."
            )
    return positions


def turned(x, cos, sin, seqlen_offsets, cu_seqlens, interleaved, conjugate):
    positions = _positions("x", x, {"cos": cos, "sin": sin}, seqlen_offsets, cu_seqlens)
    interleaved, conjugate = _core.flag("interleaved", interleaved), _core.flag("conjugate", conjugate)
    return rotate(x, cos, -sin if conjugate else sin, positions, interleaved)


class _InPlace(torch.autograd.Function):
    """rotate() written over x, which may be a leaf or a view that requires a gradient."""

    @staticmethod
    def forward(ctx, x, cos, sin, positions, interleaved):
        ctx.save_for_backward(cos, sin, positions)
        ctx.interleaved = interleaved
        x.copy_(rotate(x, cos, sin, positions, interleaved))
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        cos, sin, positions = ctx.saved_tensors
        return rotate(grad, cos, -sin, positions, ctx.interleaved), None, None, None, None


class _PartInPlace(torch.autograd.Function):
    """The same over the parts of a packed tensor: parts are (axis, first, count, cos, sin)."""

    @staticmethod
    def forward(ctx, packed, positions, interleaved, parts):
        ctx.positions, ctx.interleaved, ctx.parts = positions, interleaved, parts
        for axis, first, count, cos, sin in parts:
            part = packed.narrow(axis, first, count)
            part.copy_(rotate(part, cos, sin, _deeper(positions, part), interleaved))
        return packed.view_as(packed)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        for axis, first, count, cos, sin in ctx.parts:
            part = grad.narrow(axis, first, count)
            part.copy_(rotate(part, cos, -sin, _deeper(ctx.positions, part), ctx.interleaved))
        return grad, None, None, None


def _deeper(positions, part):
    """positions [batch, seqlen] for part [batch, seqlen, (1,) heads, dim]."""
    return positions.unsqueeze(-1) if part.dim() == 5 else positions


def rotate_half(x, interleaved=False):
    """x with the second of each pair of columns, negated, in place of the first, and the first in place of
    the second: what a quarter turn makes of it."""
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    pair = (-second, first)
    return torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)


def apply_rotary_emb_torch(x, cos, sin, interleaved=False):
    """x [batch, seqlen, heads, dim] turned by cos and sin [seqlen, rotary_dim / 2] or [batch, ...], computed
    in the dtype they promote to."""

    def per_column(table):
        both = table.repeat_interleave(2, -1) if interleaved else torch.cat((table, table), -1)
        return both.unsqueeze(-2)

    width = 2 * cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    result = turned * per_column(cos) + rotate_half(turned, interleaved) * per_column(sin)
    return torch.cat((result, rest), dim=-1)


def apply_rotary_emb(
    x,
    cos,
    sin,
    interleaved=False,
    inplace=False,
    seqlen_offsets=0,
    cu_seqlens=None,
    max_seqlen=None,
    conjugate=False,
):
    """x [batch, seqlen, heads, dim], or [total, heads, dim] with cu_seqlens, turned from position
    seqlen_offsets (an int, or [batch]) on. conjugate turns back."""
    if not _core.flag("inplace", inplace):
        return turned(x, cos, sin, seqlen_offsets, cu_seqlens, interleaved, conjugate)
    positions = _positions("x", x, {"cos": cos, "sin": sin}, seqlen_offsets, cu_seqlens)
    sin = -sin if _core.flag("conjugate", conjugate) else sin
    return _InPlace.apply(x, cos, sin, positions, _core.flag("interleaved", interleaved))


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_qkv_(
    qkv,
    cos,
    sin,
    cos_k=None,
    sin_k=None,
    interleaved=False,
    seqlen_offsets=0,
    num_heads_q=None,
):
    """qkv [batch, seqlen, 3, heads, dim], or [batch, seqlen, num_heads_q + 2 * num_heads_kv, dim] and
    num_heads_q: q and k are turned in place, k by tables of its own if they are given."""
    cos_k, sin_k = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
    tables = {"cos": cos, "sin": sin, "cos_k": cos_k, "sin_k": sin_k}
    positions = _positions("qkv", qkv, tables, seqlen_offsets)
    count_q, count_k = _heads(qkv, num_heads_q)
    parts = ((2, 0, count_q, cos, sin), (2, count_q, count_k, cos_k, sin_k))
    return _PartInPlace.apply(qkv, positions, _core.flag("interleaved", interleaved), parts)


def _heads(qkv, num_heads_q):
    """How many places of the third axis are q's and k's."""
    if qkv.dim() == 5:
        check_packed("qkv", qkv, -3, 3, "[batch, seqlen, 3, num_heads, head_dim]")
        return 1, 1
    if num_heads_q is None:
        raise ValueError(
            "num_heads_q: is needed where qkv is [batch, seqlen, num_heads_q + 2 * num_heads_kv, dim]."
        )
    num_heads_q = _core.count("num_heads_q", num_heads_q)
    num_heads_kv, rest = divmod(qkv.shape[2] - num_heads_q, 2)
    if rest or num_heads_kv < 1:
        raise ValueError(
            f"num_heads_q: is {num_heads_q}, which leaves {qkv.shape[2] - num_heads_q} of the {qkv.shape[2]} heads of qkv "
            "for keys and values; an even number of them, 2 at least, is needed."
        )
    return num_heads_q, num_heads_kv


def apply_rotary_emb_kv_(kv, cos, sin, interleaved=False, seqlen_offsets=0):
    """kv [batch, seqlen, 2, heads, dim]: k is turned in place."""
    positions = _positions("kv", kv, {"cos": cos, "sin": sin}, seqlen_offsets)
    check_packed("kv", kv, -3, 2, "[batch, seqlen, 2, num_heads_kv, head_dim]")
    return _PartInPlace.apply(kv, positions, _core.flag("interleaved", interleaved), ((2, 0, 1, cos, sin),))


class RotaryEmbedding(torch.nn.Module):
    """Turns the first `dim` columns of q and k in place by angle position / base^(2 i / dim). With scale_base
    q grows and k shrinks with the position (XPos)."""

    def __init__(self, dim, base=10000.0, interleaved=False, scale_base=None, device=None):
        super().__init__()
        self.dim, self.base = dim, float(base)
        self.interleaved, self.scale_base = interleaved, scale_base
        columns = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
        scale = None if scale_base is None else (columns + 0.4 * dim) / (1.4 * dim)
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self._tables, self._length = None, 0

    def _compute_inv_freq(self, device=None):
        columns = torch.arange(0, self.dim, 2, device=device, dtype=torch.float32)
        return self.base ** (-columns / self.dim)

    def _tables_of(self, length, like):
        """(cos, sin, cos_k, sin_k) of at least `length` positions, kept. In fp32 until they are rounded once,
        whatever the module was converted to."""
        kept = self._tables
        is_kept = kept is not None and self._length >= length and kept[0].device == like.device
        if is_kept and kept[0].dtype == like.dtype:
            if not (self.training and kept[0].is_inference()):
                return kept
        position = torch.arange(length, device=like.device, dtype=torch.float32)
        angle = torch.outer(position, self._compute_inv_freq(like.device))
        tables = (angle.cos(), angle.sin()) * 2
        if self.scale is not None:
            power = (position - length // 2)[:, None] / self.scale_base
            scale = self.scale.to(like.device, torch.float32) ** power
            tables = [t * scale for t in tables[:2]] + [t / scale for t in tables[2:]]
        self._length, self._tables = length, [table.to(like.dtype) for table in tables]
        return self._tables

    def forward(self, qkv, kv=None, seqlen_offset=0, max_seqlen=None, num_heads_q=None):
        """qkv as apply_rotary_emb_qkv_ takes it; or q [batch, seqlen, heads, dim] and kv [batch, seqlen, 2,
        heads, dim], and both are returned. max_seqlen: the largest position + 1, needed where seqlen_offset
        is a tensor."""
        if max_seqlen is None:
            if isinstance(seqlen_offset, torch.Tensor):
                if self._tables is None:
                    raise ValueError(
                        "max_seqlen: is needed where seqlen_offset is a tensor; pass the largest position + 1."
                    )
                max_seqlen = self._length
            else:
                max_seqlen = qkv.shape[1] + seqlen_offset
        cos, sin, cos_k, sin_k = self._tables_of(max_seqlen, qkv)
        shared = {"interleaved": self.interleaved, "seqlen_offsets": seqlen_offset}
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv, cos, sin, cos_k, sin_k, num_heads_q=num_heads_q, **shared
            )
        q = apply_rotary_emb_func(qkv, cos, sin, inplace=True, **shared)
        return q, apply_rotary_emb_kv_(kv, cos_k, sin_k, **shared)
