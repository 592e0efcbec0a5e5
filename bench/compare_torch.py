#!/usr/bin/env python3
"""Times Sirdar's CPU attention beside torch's scaled_dot_product_attention.

Both compute the same problem on the same tensors ([batch, heads, rows, columns] in memory, which is
how torch lays them out) with the same number of threads, in one process, in turns of random order.
Both results are compared with float64 before either is timed; a wrong one ends the run.

A sample is a pause (threads of the other library stop spinning), one call that does not count where
calls are short, and calls for at least 3 ms. Both allocate their outputs inside the timed call.

    python bench/compare_torch.py --library build/release/libsirdar.so --markdown bench/torch_cpu.md
"""

import argparse
import itertools
import json
import math
import os
import platform
import random
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from sirdar_ctypes import Library, Refused

BHND = (0, 2, 1, 3)  # Sirdar's axes [batch, rows, heads, columns] in a [batch, heads, rows, columns]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Largest error that a result may have, in units of the largest magnitude of the exact one.
TOLERANCE = {"fp32": 2e-4, "bf16": 3e-2}
WHOLE_CHECK = 2048  # rows up to which every head is checked; one head of more


class Line:
    """One problem, its tensors, and both libraries' calls on them."""

    def __init__(self, args, op, dtype, head_dim, rows, mask):
        self.op, self.dtype, self.head_dim, self.rows, self.mask = op, dtype, head_dim, rows, mask
        self.batch, self.heads, self.threads = args.batch, args.heads, args.threads
        draw = torch.Generator().manual_seed(hash((head_dim, rows)) & 0xFFFF)
        shape = (self.batch, self.heads, rows, head_dim)

        def normal(*size):
            return torch.randn(*size, generator=draw).to(DTYPES[dtype])

        self.q, self.k, self.v, self.dout = (normal(*shape) for _ in range(4))
        self.tensor = None  # the mask or bias
        if mask == "mask":
            self.tensor = torch.rand(rows, rows, generator=draw) < 0.5
            self.tensor.fill_diagonal_(True)  # no row without keys
        if mask == "bias":
            self.tensor = normal(rows, rows)

    def words(self):
        """As a problem string."""
        words = ["bwd" if self.op == "backward" else "fwd", f"b{self.batch}", f"s{self.rows}"]
        words += [f"h{self.heads}", f"d{self.head_dim}", self.dtype]
        extra = {"full": [], "causal": ["causal"], "mask": ["mask:qk"]}
        words += extra.get(self.mask, [f"bias:qk:{self.dtype}"])
        return " ".join(words)

    # --- Sirdar ---------------------------------------------------------------------------------

    def prepare_sirdar(self, library):
        words = self.words()
        self.plan = library.plan(words, self.threads)
        plans = [self.plan]
        if self.op == "backward":
            forward = library.plan(words.replace("bwd", "fwd") + " lse", self.threads)
            plans.append(forward)
        for plan in plans:
            for name in ("q", "k", "v"):
                plan.set(name, getattr(self, name), BHND)
            if self.tensor is not None:
                plan.set(self.mask, self.tensor[None, None])
        if self.op == "backward":
            self.saved_out = torch.empty_like(self.q)
            self.lse = torch.empty(self.q.shape[:3])
            forward.set("out", self.saved_out, BHND)
            forward.set("lse", self.lse)
            forward.run()
            self.plan.set("out", self.saved_out, BHND)
            self.plan.set("lse", self.lse)
            self.plan.set("dout", self.dout, BHND)

        self.outputs = ("dq", "dk", "dv") if self.op == "backward" else ("out",)
        for name in self.outputs:
            self.plan.set(name, self.q, BHND)  # its shape and strides

    def sirdar(self):
        results = tuple(torch.empty_like(self.q) for _ in self.outputs)
        for name, result in zip(self.outputs, results, strict=True):
            getattr(self.plan.args, name).data = result.data_ptr()
        self.plan.run()
        return results

    # --- torch ----------------------------------------------------------------------------------

    def attention(self, q, k, v):
        mask = self.tensor
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.mask == "causal")

    def prepare_torch(self):
        kind = torch._fused_sdp_choice(
            self.q, self.k, self.v, self.tensor, is_causal=self.mask == "causal"
        )
        self.torch_path = {0: "math", 1: "flash"}.get(kind, str(kind))
        if self.op == "backward":
            self.leaves = tuple(x.detach().requires_grad_() for x in (self.q, self.k, self.v))
            self.graph = self.attention(*self.leaves)

    def torch(self):
        if self.op == "forward":
            with torch.inference_mode():
                return (self.attention(self.q, self.k, self.v),)
        return torch.autograd.grad(self.graph, self.leaves, self.dout, retain_graph=True)

    # --- float64 --------------------------------------------------------------------------------

    def checked_heads(self):
        heads = list(itertools.product(range(self.batch), range(self.heads)))
        return heads if self.rows <= WHOLE_CHECK else [random.choice(heads)]

    def exact(self, head):
        """The results of one head, in float64, 1024 queries at a time."""
        q, k, v, dout = (x[head].double() for x in (self.q, self.k, self.v, self.dout))
        scale = 1 / math.sqrt(self.head_dim)
        out, dq = torch.empty_like(q), torch.empty_like(q)
        dk, dv = torch.zeros_like(k), torch.zeros_like(v)
        for begin in range(0, self.rows, 1024):
            rows = slice(begin, min(begin + 1024, self.rows))
            s = (q[rows] @ k.T) * scale
            if self.mask == "causal":
                hidden = torch.arange(self.rows)[None] > torch.arange(rows.start, rows.stop)[:, None]
                s.masked_fill_(hidden, -math.inf)
            if self.mask == "mask":
                s.masked_fill_(~self.tensor[rows], -math.inf)
            if self.mask == "bias":
                s += self.tensor[rows]
            p = torch.softmax(s, dim=-1)
            out[rows] = p @ v
            if self.op == "backward":
                dp = dout[rows] @ v.T
                ds = p * (dp - (dout[rows] * out[rows]).sum(-1, keepdim=True))
                dq[rows] = ds @ k * scale
                dk += ds.T @ q[rows] * scale
                dv += p.T @ dout[rows]
        return (out,) if self.op == "forward" else (dq, dk, dv)

    def error(self, results, head, exact):
        """Largest error over the results, each in units of its largest magnitude."""
        worst = 0.0
        for result, wanted in zip(results, exact, strict=True):
            error = (result[head].double() - wanted).abs().max() / wanted.abs().max()
            worst = max(worst, math.inf if torch.isnan(error) else error.item())
        return worst


def checked(line):
    """Errors of both; ends the run where one is wrong."""
    errors = {"sirdar": 0.0, "torch": 0.0}
    results = {"sirdar": line.sirdar(), "torch": line.torch()}
    for head in line.checked_heads():
        exact = line.exact(head)
        for name, result in results.items():
            errors[name] = max(errors[name], line.error(result, head, exact))
    for name, error in errors.items():
        if not error <= TOLERANCE[line.dtype]:
            sys.exit(f"{line.words()}: {name} is off by {error:.2g} of the largest value.")
    return errors


def once(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def sample(call, count):
    time.sleep(0.004)
    if count > 1:
        call()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def measure(line, args):
    """Medians and the median of the ratios of paired samples."""
    calls = {"sirdar": line.sirdar, "torch": line.torch}
    first = {name: min(once(call), once(call)) for name, call in calls.items()}
    counts = {name: max(1, math.ceil(0.003 / t)) for name, t in first.items()}
    times = {name: [] for name in calls}
    end = time.perf_counter() + args.max_time
    while len(times["torch"]) < 3 or (
        time.perf_counter() < end and len(times["torch"]) < args.samples
    ):
        for name in random.sample(sorted(calls), 2):
            times[name].append(sample(calls[name], counts[name]))
    ratios = [t / s for s, t in zip(times["sirdar"], times["torch"], strict=True)]
    return {
        "sirdar_ms": statistics.median(times["sirdar"]) * 1e3,
        "torch_ms": statistics.median(times["torch"]) * 1e3,
        "sirdar_least_ms": min(times["sirdar"]) * 1e3,
        "torch_least_ms": min(times["torch"]) * 1e3,
        "ratio": statistics.median(ratios),
        "samples": len(ratios),
    }


def grid(args):
    masks = [m for m in ("full", "causal", "mask", "bias") if m in args.masks]
    for op, dtype, mask in itertools.product(args.ops, args.dtypes, masks):
        dims = args.head_dims
        if mask in ("mask", "bias") and len(dims) == 4:
            dims = [64, 128]  # enough to tell what a tensor that is read pair by pair costs
        for head_dim, rows in itertools.product(dims, args.rows):
            yield op, dtype, head_dim, rows, mask


def measured(args, library):
    for what in grid(args):
        line = Line(args, *what)
        row = {"op": line.op, "dtype": line.dtype, "head_dim": line.head_dim, "rows": line.rows}
        row |= {"mask": line.mask, "problem": line.words(), "threads": line.threads}
        try:
            line.prepare_sirdar(library)
        except Refused as refusal:
            print(f"# {line.words()}: {refusal}", file=sys.stderr)
            continue
        line.prepare_torch()
        errors = checked(line)
        row |= measure(line, args)
        row |= {"sirdar_error": errors["sirdar"], "torch_error": errors["torch"]}
        row |= {"implementation": line.plan.name(), "torch_path": line.torch_path}
        row |= {"command": args.command}
        yield row


def say(row):
    lost = "" if row["ratio"] >= 1 else "  torch is faster"
    print(
        f"{row['problem']:44} {row['sirdar_ms']:10.3f} {row['torch_ms']:10.3f} "
        f"{row['ratio']:7.2f}  n={row['samples']:<3} {row['torch_path']}{lost}",
        flush=True,
    )


def markdown(rows, args, library):
    """Tables of one pass and dtype each; the command and what it was measured with."""
    kind = torch.backends.cpu.get_cpu_capability()
    text = [
        "# Beside torch on the CPU",
        "",
        f"{cpu_name()}, {os.cpu_count()} cores, {args.threads} threads; Sirdar {library.version()}, "
        f"torch {torch.__version__} ({kind}); batch {args.batch}, {args.heads} heads, as many queries "
        "as keys. Times are medians in milliseconds; the ratio is torch's time over Sirdar's, median "
        "over pairs of samples taken in turns: above 1 Sirdar is faster. Every result was compared "
        "with float64 first. A mask shows half of the pairs at random; masks and biases are "
        "[rows, rows], shared by the heads.",
        "",
        "```",
        *dict.fromkeys(row["command"] for row in rows),
        "```",
        "",
    ]
    masks = sorted({row["mask"] for row in rows}, key=["full", "causal", "mask", "bias"].index)
    for op, dtype in itertools.product(args.ops, args.dtypes):
        mine = [row for row in rows if row["op"] == op and row["dtype"] == dtype]
        if not mine:
            continue
        text += [f"## {op.capitalize()}, {dtype}", ""]
        heads = [f"{mask}: Sirdar | torch | ratio" for mask in masks]
        text += ["| D | N | " + " | ".join(heads) + " |", "|" + "---|" * (2 + 3 * len(masks))]
        for head_dim, rows_ in itertools.product(args.head_dims, args.rows):
            cells = []
            for mask in masks:
                key = (head_dim, rows_, mask)
                found = [r for r in mine if (r["head_dim"], r["rows"], r["mask"]) == key]
                cells += [
                    f"{r['sirdar_ms']:.3g} | {r['torch_ms']:.3g} | {r['ratio']:.2f}" for r in found
                ] or ["| | "]
            text.append(f"| {head_dim} | {rows_} | " + " | ".join(cells) + " |")
        text.append("")
    ratios = [row["ratio"] for row in rows]
    text.append(
        f"Least ratio {min(ratios):.2f}, geometric mean "
        f"{statistics.geometric_mean(ratios):.2f}, over {len(ratios)} lines; "
        f"{sum(r < 1 for r in ratios)} lines where torch is faster."
    )
    return "\n".join(text) + "\n"


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(": ", 1)[1].strip()
    return platform.processor()


def parse():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--library", default=os.path.join(root, "build/release/libsirdar.so"))
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--batch", type=int, default=1)
    add("--heads", type=int, default=8)
    add("--ops", nargs="+", default=["forward", "backward"], choices=["forward", "backward"])
    add("--dtypes", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    add("--masks", nargs="+", default=["full", "causal", "mask", "bias"])
    add("--head-dims", nargs="+", type=int, default=[32, 64, 80, 128])
    add("--rows", nargs="+", type=int, default=[128, 512, 2048, 8192])
    add("--samples", type=int, default=31, help="pairs of samples of a line, at most")
    add("--max-time", type=float, default=6, help="seconds for a line, once it has 3 samples")
    add("--quick", action="store_true", help="rows up to 2048, D of 64 and 128, 7 samples")
    add("--json", help="append one line of JSON a problem to this file")
    add("--markdown", help="write the tables to this file")
    add("--again", nargs="+", help="measure nothing: tables of these files of JSON lines")
    args = parser.parse_args()
    args.command = " ".join(["python bench/compare_torch.py", *sys.argv[1:]])
    if args.quick:
        args.head_dims, args.rows, args.samples = [64, 128], [128, 512, 2048], 7
    return args


def main():
    args = parse()
    torch.set_num_threads(args.threads)
    library = Library(args.library)
    print(f"{'problem':44} {'Sirdar ms':>10} {'torch ms':>10} {'ratio':>7}")
    again = [json.loads(line) for name in args.again or [] for line in open(name, encoding="utf-8")]
    rows = list({row["problem"]: row for row in again}.values())  # the last of each
    for row in [] if rows else measured(args, library):
        say(row)
        rows.append(row)
        if args.json:
            with open(args.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    if not rows:
        sys.exit("No line was measured.")
    if args.markdown:
        with open(args.markdown, "w", encoding="utf-8") as file:
            file.write(markdown(rows, args, library))


if __name__ == "__main__":
    main()
