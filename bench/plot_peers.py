"""Draws TFLOP/s over the sequence length beside the peers, from lines of compare_torch_cuda*.py --json.

    python3 bench/plot_peers.py bench/baselines/h200_forward.jsonl docs/images/h200_forward.svg

A panel for each head dimension and mask. Wants matplotlib.
"""

import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

# Fields of a line, how they are called and drawn.
SERIES = [
    ("sirdar", "Sirdar", {"color": "#c0392b", "marker": "o"}),
    ("free", "Sirdar, any order", {"color": "#e59866", "marker": "o", "linestyle": "--"}),
    ("cudnn", "cuDNN", {"color": "#2471a3", "marker": "s"}),
    ("flash", "torch flash", {"color": "#7f8c8d", "marker": "^"}),
]


def draw(lines, path):
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "sirdar", "font.size": 9})
    dims = sorted({line["head_dim"] for line in lines})
    figure, axes = plt.subplots(
        2, len(dims), figsize=(3.4 * len(dims), 5), sharex=True, sharey=True, squeeze=False
    )
    for row, causal in enumerate((False, True)):
        for column, dim in enumerate(dims):
            panel = axes[row][column]
            here = [x for x in lines if x["head_dim"] == dim and x["causal"] == causal]
            for field, name, style in SERIES:
                points = [(x["seqlen"], x[field]) for x in here if field in x]
                if points:
                    panel.plot(*zip(*points), label=name, markersize=3, linewidth=1.2, **style)
            panel.set_xscale("log", base=2)
            panel.set_xticks([x["seqlen"] for x in here], [x["seqlen"] for x in here])
            panel.minorticks_off()
            panel.grid(alpha=0.3)
            panel.set_title(f"head_dim {dim}, {'causal' if causal else 'no mask'}", fontsize=9)
    axes[0][0].set_ylim(bottom=0)
    axes[0][0].legend(fontsize=8, loc="lower right")
    figure.supylabel("TFLOP/s")
    figure.supxlabel("rows and keys, 16,384 tokens in all")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        draw([json.loads(line) for line in file], sys.argv[2])


if __name__ == "__main__":
    main()
