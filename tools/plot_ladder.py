"""Draws the plots of docs/ladder.md from what `sirdar ladder --json` counts.

usage: plot_ladder.py [--sirdar build/release/sirdar] [--out docs/images]

Takes about two minutes; progress goes to stderr on a terminal.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend comes first)

HEAD_DIM = 64
DEFAULT_SEQLEN = 1024
DEFAULT_FAST_MEMORY = 196608
SEQLENS = [128, 256, 512, 1024, 2048]
FAST_MEMORIES = [2**p for p in range(14, 21)]  # 16 KiB .. 1 MiB

# One colour a rung in every plot; distinguishable without colour vision, and by marker.
STYLES = {
    "standard forward": dict(color="#444444", marker="s", label="S4 standard"),
    "flash1 forward": dict(color="#d55e00", marker="o", label="S5 flash1"),
    "flash2 forward": dict(color="#0072b2", marker="^", label="S8 flash2"),
    "flash2 causal": dict(color="#56b4e9", marker="D", label="S9 flash2 causal"),
}


def run_ladder(sirdar, seqlen, fast_memory):
    """Rungs by name, as the JSON objects that the command prints; a failed check is an error."""
    problem = f"fwd sq{seqlen} sk{seqlen} d{HEAD_DIM}"
    if sys.stderr.isatty():
        print(f"{problem}, {fast_memory} bytes", file=sys.stderr)
    command = [sirdar, "ladder", problem, "--fast-memory", str(fast_memory), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"plot_ladder: {sirdar} cannot be run ({error.strerror}); build it, or name it with --sirdar.")
    if done.returncode != 0:
        sys.exit(f"plot_ladder: {' '.join(command)} exited with {done.returncode}: {done.stderr.strip()}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["rung"]: line for line in lines if line["kind"] == "rung"}


def traffic(rung):
    return rung["read_bytes"] + rung["written_bytes"]


def new_plot(title, x_label, y_label, size=(6.2, 3.9)):
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(True, which="major", linewidth=0.4, color="#dddddd")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def label_powers(axis, ticks, texts):
    axis.set_major_locator(matplotlib.ticker.FixedLocator(ticks))
    axis.set_major_formatter(matplotlib.ticker.FixedFormatter(texts))
    axis.set_minor_locator(matplotlib.ticker.NullLocator())


def size_text(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:g} {unit}"
        count /= 1024
    return f"{count:g} TiB"


def bytes_axis(axis, low, high):
    ticks = [2**p for p in range(0, 48, 2) if low / 2 <= 2**p <= high * 2]
    label_powers(axis, ticks, [size_text(t) for t in ticks])


def plot_traffic_against_memory(runs):
    figure, axes = new_plot(
        f"Slow-memory traffic of one head, N = {DEFAULT_SEQLEN}, d = {HEAD_DIM}, fp32",
        "fast memory M", "bytes read and written")
    every = []
    for name in ("standard forward", "flash1 forward", "flash2 forward"):
        values = [traffic(runs[m][name]) for m in FAST_MEMORIES]
        every += values
        axes.plot(FAST_MEMORIES, values, **STYLES[name])
    # N^2 d^2 / M elements of 4 bytes with M in elements
    bound = [4 * (DEFAULT_SEQLEN * HEAD_DIM) ** 2 / (m / 4) for m in FAST_MEMORIES]
    axes.plot(FAST_MEMORIES, bound, color="#999999", linestyle="--", label="$N^2d^2/M$ elements")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    label_powers(axes.xaxis, FAST_MEMORIES, [size_text(m) for m in FAST_MEMORIES])
    bytes_axis(axes.yaxis, min(bound), max(every))
    axes.legend(frameon=False, fontsize=8)
    return figure


def seqlen_axis(axes):
    axes.set_xscale("log", base=2)
    label_powers(axes.xaxis, SEQLENS, [str(n) for n in SEQLENS])


def plot_against_seqlen(runs, names, value, title, y_label):
    figure, axes = new_plot(title, "sequence length N", y_label)
    every = []
    for name in names:
        values = [value(runs[n][name]) for n in SEQLENS]
        every += values
        axes.plot(SEQLENS, values, **STYLES[name])
    seqlen_axis(axes)
    axes.set_yscale("log", base=2)
    bytes_axis(axes.yaxis, min(every), max(every))
    axes.legend(frameon=False, fontsize=8)
    return figure


def plot_flops(rungs):
    figure, (matmul, other) = plt.subplots(1, 2, figsize=(7.4, 3.9), sharey=True, layout="constrained")
    figure.suptitle(f"Arithmetic of each rung, N = {DEFAULT_SEQLEN}, d = {HEAD_DIM}", fontsize=10)
    names = [name for name, rung in rungs.items() if rung["matmul_flops"] > 0]
    labels = [f"{rungs[name]['system']} {name}" for name in names]
    matmul.barh(labels, [rungs[name]["matmul_flops"] / 1e6 for name in names], color="#0072b2")
    matmul.set_xlabel("matrix products, MFLOP")
    flops = [rungs[name]["other_flops"] / 1e6 for name in names]
    exps = [rungs[name]["exps"] / 1e6 for name in names]
    other.barh(labels, flops, color="#d55e00", label="other FLOPs")
    other.barh(labels, exps, left=flops, color="#f0c080", label="exponentials")
    other.set_xlabel("everything else, millions")
    other.set_xlim(0, 1.35 * max(f + e for f, e in zip(flops, exps)))
    other.legend(frameon=False, fontsize=8, loc="upper right")
    matmul.invert_yaxis()
    for axes in (matmul, other):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, axis="x", linewidth=0.4, color="#dddddd")
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8)
    return figure


def plot_causal(runs):
    figure, axes = new_plot(
        f"What causal skipping leaves, d = {HEAD_DIM}, M = {size_text(DEFAULT_FAST_MEMORY)}",
        "sequence length N", "share of the full forward pass")
    for key, value, color, marker in (
            ("matmul FLOPs", lambda rung: rung["matmul_flops"], "#0072b2", "^"),
            ("slow-memory traffic", traffic, "#d55e00", "o")):
        shares = [value(runs[n]["flash2 causal"]) / value(runs[n]["flash2 forward"]) for n in SEQLENS]
        axes.plot(SEQLENS, shares, color=color, marker=marker, label=key)
    axes.axhline(0.5, color="#999999", linestyle="--", label="the limit, one half")
    seqlen_axis(axes)
    axes.set_ylim(0.4, 1.05)
    axes.legend(frameon=False, fontsize=8)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--sirdar", default=str(root / "build/release/sirdar"))
    parser.add_argument("--out", type=pathlib.Path, default=root / "docs/images")
    arguments = parser.parse_args()
    # Text stays text, and the same data gives the same file.
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "sirdar", "font.size": 9,
                         "lines.markersize": 4.5, "lines.linewidth": 1.4})

    by_memory = {m: run_ladder(arguments.sirdar, DEFAULT_SEQLEN, m) for m in FAST_MEMORIES}
    by_seqlen = {n: run_ladder(arguments.sirdar, n, DEFAULT_FAST_MEMORY) for n in SEQLENS}
    where = f"d = {HEAD_DIM}, M = {size_text(DEFAULT_FAST_MEMORY)}, fp32"
    figures = {
        "ladder_traffic_memory": plot_traffic_against_memory(by_memory),
        "ladder_traffic_seqlen": plot_against_seqlen(
            by_seqlen, ("standard forward", "flash1 forward", "flash2 forward", "flash2 causal"),
            traffic, f"Slow-memory traffic of one head, {where}", "bytes read and written"),
        "ladder_extra_memory": plot_against_seqlen(
            by_seqlen, ("standard forward", "flash1 forward", "flash2 forward"),
            lambda rung: rung["extra_bytes"], f"Memory beyond inputs and output, {where}", "bytes"),
        "ladder_flops": plot_flops(by_seqlen[DEFAULT_SEQLEN]),
        "ladder_causal": plot_causal(by_seqlen),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(arguments.out / f"{name}.svg", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
