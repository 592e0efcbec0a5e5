"""Attention in NumPy float64, written from docs/semantics.md and from nothing else.

Everything is one dense matrix: no tiles, no running sums. Arrays are [seqlen, heads, dim] of one
sequence; batches are loops.
"""

import numpy as np


def structured(sq, sk, causal=False, left=None, right=None, chunk=None, top_left=False):
    """[sq, sk] booleans: what causal masks, windows and chunks show."""
    i, j = np.arange(sq)[:, None], np.arange(sk)[None, :]
    p = i if top_left else i + sk - sq
    shown = np.ones((sq, sk), bool)
    if causal:
        shown &= j <= p
    if left is not None:
        shown &= j >= p - left
    if right is not None:
        shown &= j <= p + right
    if chunk is not None:
        shown &= np.floor_divide(j, chunk) == np.floor_divide(p, chunk)
    return shown


def forward(q, k, v, shown=None, scale=None, softcap=None, bias=None, slope=None, mod=None,
            sink=None):
    """shown, bias broadcast to [heads, sq, sk]; mod(s, h, i, j) -> (s', ds'/ds)."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    sq, heads, dim = q.shape
    sk = k.shape[0]
    group = heads // k.shape[1]
    scale = dim ** -0.5 if scale is None else scale
    keys, values = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = scale * np.einsum("ihd,jhd->hij", q, keys)
    slope_of_s = np.ones_like(s)
    if softcap is not None:
        t = np.tanh(s / softcap)
        s, slope_of_s = softcap * t, slope_of_s * (1 - t * t)
    if bias is not None:
        s = s + bias
    h, i, j = np.ogrid[:heads, :sq, :sk]
    if slope is not None:
        s = s - np.asarray(slope, np.float64)[:, None, None] * np.abs(i + sk - sq - j)
    if mod is not None:
        s, d = mod(s, h, i, j)
        slope_of_s = slope_of_s * d
    visible = np.broadcast_to(True if shown is None else shown, s.shape) & ~np.isneginf(s)
    s = np.where(visible, s, -np.inf)
    top = s.max(-1, initial=-np.inf)
    safe = np.where(np.isfinite(top), top, 0)
    total = np.exp(s - safe[..., None]).sum(-1)
    if sink is not None:
        total = total + np.exp(np.asarray(sink, np.float64)[:, None] - safe)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + np.where(total > 0, safe, 0)
    weights = np.exp(s - np.where(np.isfinite(lse), lse, 0)[..., None])
    weights = np.where(visible, weights, 0)
    out = np.einsum("hij,jhd->ihd", weights, values)
    return dict(out=out, lse=lse, max_logit=top, p=weights, keys=keys, values=values, q=q,
                scale=scale, slope_of_s=slope_of_s, group=group, sink=sink)


def backward(f, dout, dlse=None):
    dout = np.asarray(dout, np.float64)
    dp = np.einsum("ihd,jhd->hij", dout, f["values"])
    d = np.einsum("ihd,ihd->hi", dout, f["out"])
    if dlse is not None:
        d = d - np.asarray(dlse, np.float64)
    ds_bias = f["p"] * (dp - d[..., None])
    ds = ds_bias * f["slope_of_s"]

    def of_group(x):  # [sk, heads, dim] -> [sk, kv heads, dim]
        return x.reshape(x.shape[0], -1, f["group"], x.shape[2]).sum(2)

    grads = dict(
        dq=f["scale"] * np.einsum("hij,jhd->ihd", ds, f["keys"]),
        dk=of_group(f["scale"] * np.einsum("hij,ihd->jhd", ds, f["q"])),
        dv=of_group(np.einsum("hij,ihd->jhd", f["p"], dout)),
        ds=ds_bias)
    if f["sink"] is not None:
        weight = np.exp(np.asarray(f["sink"], np.float64)[:, None] - f["lse"])
        grads["dsink"] = -(weight * d).sum(-1)
    return grads
