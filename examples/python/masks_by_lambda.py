"""Scores and masks of your own, as Python functions over NumPy arrays.

usage: masks_by_lambda.py [PLOT.svg]

Texts of different lengths are packed into one sequence and attend within themselves only; ALiBi is
written by hand; a bias of the distance is learned by its gradient. Each is checked against what it must equal.
With a file name, the weights that one head gives are drawn.
"""

import sys

import numpy as np
import sirdar

HEADS, DIM = 4, 32
GENERATOR = np.random.default_rng(1)


def documents():
    """Packed texts by a lambda; the largest difference to each text by itself."""
    lengths = [130, 70, 200, 112]
    document = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    q, k, v = GENERATOR.standard_normal((3, 1, sum(lengths), HEADS, DIM), dtype=np.float32)
    out = sirdar.attention(
        q, k, v, mask_mod=lambda b, h, q, k: (document[q] == document[k]) & (q >= k)
    )
    worst, start = 0.0, 0
    for length in lengths:
        rows = np.s_[:, start : start + length]
        alone = sirdar.attention(q[rows], k[rows], v[rows], causal=True)
        worst = max(worst, np.abs(out[rows] - alone).max())
        start += length
    return worst


def alibi():
    """ALiBi by a lambda; the largest difference to the slopes as an argument."""
    slope = 2.0 ** -np.arange(1, HEADS + 1, dtype=np.float32)
    q, k, v = GENERATOR.standard_normal((3, 2, 300, HEADS, DIM), dtype=np.float32)

    def score_mod(score, b, h, q, k):
        return score - slope[h] * abs(q - k)

    by_lambda = sirdar.attention(q, k, v, score_mod=score_mod, causal=True)
    return np.abs(by_lambda - sirdar.attention(q, k, v, alibi=slope, causal=True)).max()


def learned_distance(steps=60, reach=8):
    """A bias for each distance up to `reach`, learned so that the output becomes that of a known one; the
    error before and after."""
    true = np.linspace(1, -1, reach + 1, dtype=np.float32)
    table = np.zeros(reach + 1, np.float32)
    q, k, v = GENERATOR.standard_normal((3, 1, 128, HEADS, DIM), dtype=np.float32)

    def with_bias(values):
        def score_mod(score, q, k):
            return score + values[sirdar.expressions.minimum(q - k, reach)]

        return dict(score_mod=score_mod, causal=True)

    wanted = sirdar.attention(q, k, v, **with_bias(true))
    errors = []
    for _ in range(steps):
        out, lse = sirdar.attention(q, k, v, **with_bias(table), return_lse=True)
        dout = 2 * (out - wanted)
        errors.append(float(np.square(out - wanted).mean()))
        gradients = sirdar.backward(
            dout, q, k, v, out, lse, **with_bias(table), needs_dtensors="values"
        )
        table = table - 0.003 * gradients.dtensors["values"]
    return errors[0], errors[-1]


def draw(path):
    """The weights of one head for packed texts, read off by attending to the unit vectors."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    document = np.repeat(np.arange(3, dtype=np.int32), [20, 12, 32])
    slope = np.float32(0.2)
    q, k = GENERATOR.standard_normal((2, 1, 64, 1, DIM), dtype=np.float32)
    weights = sirdar.attention(
        q, k, np.eye(64, dtype=np.float32)[None, :, None],
        score_mod=lambda score, q, k: score - slope * (q - k),
        mask_mod=lambda q, k: (document[q] == document[k]) & (q >= k),
    )  # fmt: skip
    pyplot.imshow(weights[0, :, 0], cmap="magma_r")
    pyplot.xlabel("key")
    pyplot.ylabel("query")
    pyplot.savefig(path)


def main(arguments):
    print(f"packed texts: off by {documents():.1e}")
    print(f"ALiBi:        off by {alibi():.1e}")
    before, after = learned_distance()
    print(f"distances:    error {before:.1e} before learning them, {after:.1e} after")
    assert after < before / 1000
    if arguments:
        draw(arguments[0])


if __name__ == "__main__":
    main(sys.argv[1:])
