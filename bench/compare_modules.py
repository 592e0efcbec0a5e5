#!/usr/bin/env python3
"""Times sirdar.torch beside torch's scaled_dot_product_attention as a program calls them: overhead included.

    python bench/compare_modules.py                                     one process, CPU, threads of the machine
    python bench/compare_modules.py --device cuda --json FILE           beside cuDNN, 16,384 tokens of 2048 columns

`forward` is a call without gradients, `training` a call and its backward pass through autograd. Both sides get
the same tensors, [batch, heads, rows, columns] views of [batch, rows, heads, columns], and take turns; the
ratio is the median over pairs of torch's time over Sirdar's: above 1 Sirdar is faster. A result is compared with
float64 first, and a wrong one ends the run. On a GPU the L2 cache is flushed before every call.
"""

import argparse
import contextlib
import json
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import sirdar
import sirdar.torch

TOKENS, COLUMNS = 16384, 2048  # on a GPU
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Largest error that a result may have, in units of the largest magnitude of the exact one.
TOLERANCE = {"fp32": 2e-4, "bf16": 3e-2, "fp16": 4e-3}


def words(text):
    return text.split(",")


def numbers(text):
    return [int(word) for word in text.split(",")]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--ops", type=words, default=["forward", "training"])
    parser.add_argument("--dtypes", type=words)
    parser.add_argument("--masks", type=words, default=["full", "causal"])
    parser.add_argument("--head-dims", type=numbers)
    parser.add_argument("--rows", type=numbers)
    parser.add_argument("--heads", type=int, default=8, help="of one batch, on a CPU")
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument(
        "--max-time", type=float, default=0.5, help="seconds a line may take a side"
    )
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="after so many no further line begins"
    )
    parser.add_argument("--json", help="also write the lines here, each when it is measured")
    arguments = parser.parse_args()
    is_gpu = arguments.device == "cuda"
    arguments.dtypes = arguments.dtypes or (["bf16"] if is_gpu else ["fp32", "bf16"])
    arguments.head_dims = arguments.head_dims or ([64, 128] if is_gpu else [64, 128])
    arguments.rows = arguments.rows or (
        [512, 2048, 8192, 16384] if is_gpu else [16, 128, 512, 2048]
    )
    return arguments


class Line:
    """One problem: its tensors, and a call of either side."""

    def __init__(self, arguments, op, dtype, mask, head_dim, rows):
        self.op, self.dtype, self.mask, self.device = op, dtype, mask, arguments.device
        is_gpu = self.device == "cuda"
        batch, heads = (TOKENS // rows, COLUMNS // head_dim) if is_gpu else (1, arguments.heads)
        draw = torch.Generator(self.device).manual_seed(head_dim + rows)

        def normal(*shape):
            tensor = torch.randn(*shape, generator=draw, device=self.device)
            return tensor.to(DTYPES[dtype])

        self.q, self.k, self.v, self.dout = (
            normal(batch, rows, heads, head_dim).transpose(1, 2) for _ in range(4)
        )
        self.options = {"is_causal": mask == "causal"}
        if mask == "mask":
            shown = torch.rand(rows, rows, generator=draw, device=self.device) < 0.5
            self.options["attn_mask"] = shown.fill_diagonal_(True)  # no row without keys
        elif mask == "bias":
            self.options["attn_mask"] = normal(rows, rows)
        if op == "training":
            for tensor in (self.q, self.k, self.v):
                tensor.requires_grad_()
        pairs = rows * rows / (2 if mask == "causal" else 1)
        self.flop = (14 if op == "training" else 4) * batch * heads * head_dim * pairs

    def run(self, function):
        if self.op == "forward":
            with torch.no_grad():
                return (function(self.q, self.k, self.v, **self.options),)
        out = function(self.q, self.k, self.v, **self.options)
        return (out.detach(), *torch.autograd.grad(out, (self.q, self.k, self.v), self.dout))

    def sirdar(self):
        return self.run(sirdar.torch.scaled_dot_product_attention)

    def torch(self):
        backend = contextlib.nullcontext()
        if self.device == "cuda":
            backend = sdpa_kernel([SDPBackend.CUDNN_ATTENTION])
        with backend:
            return self.run(F.scaled_dot_product_attention)

    def error(self):
        """Of the first head: the largest error over the largest magnitude, of out and gradients."""
        part = [tensor[:1, :1].detach().double() for tensor in (self.q, self.k, self.v)]
        dout = self.dout[:1, :1].double()
        options = dict(self.options)
        if options.get("attn_mask") is not None and options["attn_mask"].is_floating_point():
            options["attn_mask"] = options["attn_mask"].double()
        for tensor in part:
            tensor.requires_grad_(self.op == "training")
        out = F.scaled_dot_product_attention(*part, **options)
        exact = [out.detach()]
        if self.op == "training":
            exact += torch.autograd.grad(out, part, dout)
        made = [tensor[:1, :1].double() for tensor in self.sirdar()]
        return max(
            ((one - two).abs().max() / two.abs().max()).item() for one, two in zip(made, exact)
        )


def cpu_time(call, least=3e-3):
    """Seconds of a call: of so many that they take `least`."""
    count, total = 1, 0.0
    while True:
        begin = time.perf_counter()
        for _ in range(count):
            call()
        total = time.perf_counter() - begin
        if total >= least or count >= 1024:
            return total / count
        count *= max(2, int(least / max(total, 1e-6)))


def gpu_time(call, flush, repeats=3):
    """Seconds of a call by events, the median of a few."""
    pairs = []
    for _ in range(repeats):
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        flush.zero_()
        pair[0].record()
        call()
        pair[1].record()
        pairs.append(pair)
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in pairs) / 1000


def measure(line, samples, max_time, flush):
    """(median of Sirdar's, of torch's, of the ratios); the sides change places every time."""
    time_of = cpu_time if flush is None else lambda call: gpu_time(call, flush)
    for call in (line.sirdar, line.torch):
        for _ in range(1 if flush is None else 5):
            call()
    pairs, begin = [], time.perf_counter()
    for sample in range(samples):
        if sample % 2:
            other, own = time_of(line.torch), time_of(line.sirdar)
        else:
            own, other = time_of(line.sirdar), time_of(line.torch)
        pairs.append((own, other))
        if time.perf_counter() - begin > 2 * max_time and len(pairs) >= 3:
            break
    own, other = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    return own, other, statistics.median(b / a for a, b in pairs)


def lines_of(arguments):
    for op in arguments.ops:
        for dtype in arguments.dtypes:
            for mask in arguments.masks:
                for head_dim in arguments.head_dims:
                    for rows in arguments.rows:
                        yield {
                            "op": op,
                            "dtype": dtype,
                            "mask": mask,
                            "head_dim": head_dim,
                            "rows": rows,
                        }


def main():
    arguments = parse_arguments()
    flush = None
    where = f"{torch.get_num_threads()} threads"
    if arguments.device == "cuda":
        flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        where = f"{torch.cuda.get_device_name()}, cuDNN {torch.backends.cudnn.version()}"
    print(f"sirdar {sirdar.__version__}, torch {torch.__version__}, {where}")
    ratios, begin = [], time.perf_counter()
    file = open(arguments.json, "w", encoding="utf-8") if arguments.json else None
    for case in lines_of(arguments):
        name = " ".join(str(value) for value in case.values())
        if time.perf_counter() - begin > arguments.seconds:
            print(f"{name:<32} not begun after {arguments.seconds:g} s")
            continue
        line = Line(arguments, **case)
        try:
            error = line.error()
        except NotImplementedError as refusal:
            print(f"{name:<32} refused: {refusal}", flush=True)
            continue
        if not error <= TOLERANCE[case["dtype"]]:
            sys.exit(f"{name}: wrong by {error:.1e} of the largest magnitude.")
        own, other, ratio = measure(line, arguments.samples, arguments.max_time, flush)
        ratios.append(ratio)
        if file:
            record = case | {"sirdar_ms": own * 1e3, "torch_ms": other * 1e3, "ratio": ratio}
            print(json.dumps(record), file=file, flush=True)
        rate = line.flop / own / 1e12
        print(f"{name:<32} {own * 1e3:9.3f} ms {rate:7.2f} TFLOP/s  torch {other * 1e3:9.3f} ms  ratio {ratio:5.2f}",
              flush=True)  # fmt: skip
        del line
    if ratios:
        mean = math.exp(statistics.mean(math.log(ratio) for ratio in ratios))
        print(f"{len(ratios)} lines: least ratio {min(ratios):.2f}, geometric mean {mean:.2f}")
    if file:
        file.close()


if __name__ == "__main__":
    main()
