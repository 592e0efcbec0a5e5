"""Times Sirdar's forward beside torch's cuDNN and flash backends on one GPU, in one process.

    python3 bench/compare_torch_cuda.py build/release/libsirdar.so [--head-dims 64,128,256]
        [--seqlens 512,1024,2048,4096,8192,16384] [--rounds 6] [--check] [--json FILE]
        [--variant "block_n=80 num_stages_k=2"]...

16,384 tokens and 2048 columns in all, random normal bf16, rows of [batch, seqlen, heads, head_dim].
FLOP = 4 * batch * heads * seqlen^2 * head_dim, half for causal. Implementations take turns call by call,
in random order and behind a common warm-up, so that all meet the same clock, power and heat; L2 is flushed
before every call; the median counts. A --variant is the kernel with other knobs. A result is compared with
float64 first, and a wrong one ends the run. flash-attn 3 and 4 take part where they are installed
(flash_attn_peer.py); they are compared with ours.
"""

import argparse
import json
import math
import random
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from flash_attn_peer import MODULES, agreeing, forward_runners, relative
from sirdar_ctypes import Library

TOKENS, HIDDEN = 16384, 2048
MASKS = {"no": [False], "yes": [True], "both": [False, True]}  # of --causal


def numbers(text):
    return [int(word) for word in text.split(",")]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("library")
    parser.add_argument("--head-dims", type=numbers, default=[64, 128, 256])
    parser.add_argument("--seqlens", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--rounds", type=int, default=4, help="of about 60 ms")
    parser.add_argument("--causal", choices=MASKS, default="both")
    parser.add_argument("--variant", action="append", default=[], help="knobs, apart by spaces")
    parser.add_argument("--check", action="store_true", help="compare only, do not time")
    parser.add_argument("--json", help="also write the lines here")
    return parser.parse_args()


class Case:
    """One line of the grid: its tensors and what runs on them."""

    def __init__(self, library, batch, seqlen, head_dim, causal, variants=()):
        heads = HIDDEN // head_dim
        shape = (batch, seqlen, heads, head_dim)
        self.q, self.k, self.v = (
            torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)
        )
        self.out = torch.full_like(self.q, math.nan)
        self.lse = torch.full((batch, heads, seqlen), math.nan, device="cuda")
        self.causal = causal
        self.flop = 4 * batch * heads * seqlen * seqlen * head_dim / (2 if causal else 1)
        words = f"fwd b{batch} s{seqlen} h{heads} d{head_dim} bf16 lse" + " causal" * causal
        self.plans = {}
        for variant in ("sirdar", *variants):
            knobs = () if variant == "sirdar" else variant.split()
            plan = self.plans[variant] = library.plan(words, device="cuda", knobs=knobs)
            for name in ("q", "k", "v", "out", "lse"):
                plan.set(name, getattr(self, name))
        self.stream = torch.cuda.current_stream().cuda_stream

    def torch(self, backend):
        with sdpa_kernel([backend]):
            q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2)

    def runners(self):
        ours = {name: lambda plan=plan: plan.run(self.stream) for name, plan in self.plans.items()}
        return ours | {
            "cudnn": lambda: self.torch(SDPBackend.CUDNN_ATTENTION),
            "flash": lambda: self.torch(SDPBackend.FLASH_ATTENTION),
        } | agreeing(forward_runners(self.q, self.k, self.v, self.causal), [self.out], 6e-3)

    def error(self, heads=2):
        """Largest relative error of out against float64, of the first batch's first heads."""
        q, k, v = (x[:1, :, :heads].transpose(1, 2).double() for x in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if self.causal:
            hidden = torch.ones(scores.shape[-2:], device="cuda", dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -math.inf)
        right = (torch.softmax(scores, -1) @ v).transpose(1, 2)
        errors = []
        for plan in self.plans.values():
            self.out.fill_(math.nan)
            plan.run(self.stream)
            errors.append(relative(self.out[:1, :, :heads], right))
            if not bool(self.out.isfinite().all()):
                errors.append(math.inf)
        return max(errors)


def times_of(runners, flop, rounds, warm_ms=60.0, measure_ms=60.0):
    """Median milliseconds of each of `runners`, functions by name."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    times = {name: [] for name in runners}

    def run_all(order, sink):
        """Each once; one after the other, so that all meet the same clock and power."""
        for name in order:
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            flush.zero_()
            pair[0].record()
            runners[name]()
            pair[1].record()
            sink.append((name, pair))

    guess, generator = flop / 400e9 + 0.08, random.Random(flop)
    for _ in range(max(2, int(warm_ms / len(runners) / guess))):
        run_all(list(runners), [])
    for _ in range(rounds):
        events = []
        for _ in range(max(4, int(measure_ms / len(runners) / guess))):
            order = list(runners)
            generator.shuffle(order)
            run_all(order, events)
        torch.cuda.synchronize()
        for name, (start, end) in events:
            times[name].append(start.elapsed_time(end))
    return {name: statistics.median(values) for name, values in times.items()}


def main():
    arguments = parse_arguments()
    library = Library(arguments.library)
    print(f"Sirdar {library.version()}, torch {torch.__version__}, "
          f"cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}")
    lines, ratios = [], []
    for head_dim in arguments.head_dims:
        for causal in MASKS[arguments.causal]:
            for seqlen in arguments.seqlens:
                case = Case(library, TOKENS // seqlen, seqlen, head_dim, causal, arguments.variant)
                error = case.error()
                if not error < 6e-3:
                    raise SystemExit(f"d{head_dim} s{seqlen} causal={causal}: error {error:.2e}")
                line = {"head_dim": head_dim, "causal": causal, "seqlen": seqlen, "error": error}
                if not arguments.check:
                    times = times_of(case.runners(), case.flop, arguments.rounds)
                    line |= {name: round(case.flop / ms / 1e9, 1) for name, ms in times.items()}
                    line["ratio"] = round(times["cudnn"] / times["sirdar"], 3)
                    line |= {f"ratio_{name}": round(times[name] / times["sirdar"], 3)
                             for name in MODULES if name in times}
                    ratios.append(line["ratio"])
                lines.append(line)
                print(" ".join(f"{key}={value:.2e}" if key == "error" else f"{key}={value}"
                               for key, value in line.items()), flush=True)
    if ratios:
        print(f"geometric mean of the ratio to cuDNN: {statistics.geometric_mean(ratios):.3f}, "
              f"least {min(ratios):.3f}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
