"""Causal attention over 1024 tokens and 8 heads of 64, from Python; NumPy here, torch and JAX alike."""

import numpy as np
import sirdar

q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1024, 8, 64), dtype=np.float32)
out = sirdar.attention(q, k, v, causal=True)  # an array of the caller's framework

slope = 2.0 ** -np.arange(1, 9, dtype=np.float32)  # ALiBi, written by hand, as a lambda
out, lse = sirdar.attention(
    q, k, v, causal=True, return_lse=True,
    score_mod=lambda score, b, h, q, k: score - slope[h] * (q - k),
)  # fmt: skip
plan = sirdar.plan(q, k, v, causal=True)  # prepared once, for calls of a few microseconds more than C's
assert np.array_equal(plan(q, k, v), sirdar.attention(q, k, v, causal=True))
print(f"{plan.name}: {out.shape}, lse from {lse.min():.2f} to {lse.max():.2f}")
