"""Times Sirdar's backward beside torch's cuDNN and flash backends on one GPU, in one process.

    python3 bench/compare_torch_cuda_backward.py build/release/libsirdar.so [--head-dims 64,128,256]
        [--seqlens 1024,4096,16384] [--rounds 4] [--check] [--json FILE]
        [--variant "packs_products=true num_slots=2"]...

16,384 tokens and 2048 columns in all, random normal bf16, rows of [batch, seqlen, heads, head_dim].
FLOP = 10 * batch * heads * seqlen^2 * head_dim, half for causal. "sirdar" adds dQ in a fixed order,
"free" in any, every --variant is the deterministic kernel with other knobs, or with the word
nondeterministic the free one. Implementations take turns call by call in random order; L2 is flushed before
every call; the median counts. Gradients are compared with float64 first, two deterministic runs with each
other bit by bit, and a wrong one ends the run. flash-attn 3 and 4 take part where they are installed
(flash_attn_peer.py), each in any order and in a fixed one ("_det").
"""

import argparse
import json
import math
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from compare_torch_cuda import HIDDEN, MASKS, TOKENS, numbers, times_of
from flash_attn_peer import agreeing, backward_runners
from sirdar_ctypes import Library

GRADIENTS = ("dq", "dk", "dv")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("library")
    parser.add_argument("--head-dims", type=numbers, default=[64, 128, 256])
    parser.add_argument("--seqlens", type=numbers, default=[1024, 4096, 16384])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--causal", choices=MASKS, default="both")
    parser.add_argument("--variant", action="append", default=[], help="knobs, apart by spaces")
    parser.add_argument("--check", action="store_true", help="compare only, do not time")
    parser.add_argument("--json", help="also write the lines here")
    return parser.parse_args()


class Case:
    """One line of the grid: its tensors and what runs on them."""

    def __init__(self, library, seqlen, head_dim, causal, variants):
        batch, heads = TOKENS // seqlen, HIDDEN // head_dim
        shape = (batch, seqlen, heads, head_dim)
        self.tensors = {
            name: torch.randn(shape, device="cuda", dtype=torch.bfloat16)
            for name in ("q", "k", "v", "dout")
        }
        self.tensors |= {name: torch.empty(shape, device="cuda", dtype=torch.bfloat16)
                         for name in ("out",) + GRADIENTS}
        self.tensors["lse"] = torch.empty((batch, heads, seqlen), device="cuda")
        self.causal = causal
        self.flop = 10 * batch * heads * seqlen * seqlen * head_dim / (2 if causal else 1)
        self.stream = torch.cuda.current_stream().cuda_stream
        words = f"b{batch} s{seqlen} h{heads} d{head_dim} bf16" + " causal" * causal
        self.run_once(library, f"fwd {words} lse", ("q", "k", "v", "out", "lse"))
        self.plans = {"sirdar": self.plan(library, f"bwd {words}"),
                      "free": self.plan(library, f"bwd {words} nondeterministic")}
        for variant in variants:
            parts = variant.split()
            more = "".join(f" {part}" for part in parts if "=" not in part)
            knobs = [part for part in parts if "=" in part]
            self.plans[variant] = self.plan(library, f"bwd {words}{more}", knobs)

    def plan(self, library, words, knobs=()):
        plan = library.plan(words, device="cuda", knobs=knobs)
        for name, tensor in self.tensors.items():
            plan.set(name, tensor)
        return plan

    def run_once(self, library, words, names):
        plan = library.plan(words, device="cuda")
        for name in names:
            plan.set(name, self.tensors[name])
        plan.run(self.stream)

    def runners(self):
        runners = {name: lambda plan=plan: plan.run(self.stream)
                   for name, plan in self.plans.items()}
        for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION),
                              ("flash", SDPBackend.FLASH_ATTENTION)):
            runners[name] = self.torch(backend)
        ours = self.results("sirdar")
        inputs = [self.tensors[name] for name in ("q", "k", "v", "dout")]
        return runners | agreeing(backward_runners(*inputs, self.causal), ours, 8e-3)

    def torch(self, backend):
        inputs = [self.tensors[name].transpose(1, 2).requires_grad_() for name in ("q", "k", "v")]
        with sdpa_kernel([backend]):
            out = F.scaled_dot_product_attention(*inputs, is_causal=self.causal)
        dout = self.tensors["dout"].transpose(1, 2)
        return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)

    def results(self, name):
        for gradient in GRADIENTS:
            self.tensors[gradient].fill_(math.nan)
        self.plans[name].run(self.stream)
        return [self.tensors[gradient].clone() for gradient in GRADIENTS]

    def right(self):
        """float64 gradients of the first batch's first head."""
        q, k, v, dout = (self.tensors[name][0, :, 0].double() for name in ("q", "k", "v", "dout"))
        scale = 1 / math.sqrt(q.shape[-1])
        scores = q @ k.T * scale
        if self.causal:
            hidden = torch.ones(scores.shape, device="cuda", dtype=torch.bool).triu(1)
            scores.masked_fill_(hidden, -math.inf)
        weights = torch.softmax(scores, -1)
        products = dout @ v.T
        products -= (weights * products).sum(-1, keepdim=True)
        products *= weights
        return [products @ k * scale, products.T @ q * scale, weights.T @ dout]

    def errors(self):
        """Of every plan the largest relative error of the three gradients; bits must repeat."""
        right, errors = self.right(), {}
        for name in self.plans:
            found = self.results(name)
            errors[name] = max(float((f[0, :, 0].double() - r).norm() / r.norm())
                               for f, r in zip(found, right))
            if name != "free" and "nondeterministic" not in name:
                again = self.results(name)
                if not all(torch.equal(a, b) for a, b in zip(found, again)):
                    raise SystemExit(f"{name}: two runs differ")
            # One head is compared; of the others that they are there.
            if not all(bool(f.isfinite().all()) for f in found):
                raise SystemExit(f"{name}: not finite")
        return errors


def line_of(case, arguments):
    errors = case.errors()
    line = {"error": max(errors.values())}
    if not line["error"] < 8e-3:
        raise SystemExit(f"wrong gradients: {errors}")
    if arguments.check:
        return line
    times = times_of(case.runners(), case.flop, arguments.rounds)
    line |= {name: round(case.flop / ms / 1e9, 1) for name, ms in times.items()}
    line["ratio"] = round(times["cudnn"] / times["sirdar"], 3)
    line["ratio_free"] = round(times["cudnn"] / times["free"], 3)
    line |= {f"ratio_{name}": round(ms / times["sirdar"], 3)
             for name, ms in times.items() if name.startswith("fa")}
    return line


def main():
    arguments = parse_arguments()
    library = Library(arguments.library)
    print(f"Sirdar {library.version()}, torch {torch.__version__}, "
          f"cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}")
    lines = []
    for head_dim in arguments.head_dims:
        for causal in MASKS[arguments.causal]:
            for seqlen in arguments.seqlens:
                case = Case(library, seqlen, head_dim, causal, arguments.variant)
                name = case.plans["sirdar"].name()
                if name != "cuda.sm90.backward":
                    raise SystemExit(f"{name} would run")
                line = {"head_dim": head_dim, "causal": causal, "seqlen": seqlen}
                line |= line_of(case, arguments)
                lines.append(line)
                print(" ".join(f"{key}={value:.2e}" if key == "error" else f"{key}={value}"
                               for key, value in line.items()), flush=True)
    for key in ("ratio", "ratio_free"):
        if key in lines[0]:
            ratios = [line[key] for line in lines]
            print(f"geometric mean of {key} to cuDNN: {statistics.geometric_mean(ratios):.3f}, "
                  f"least {min(ratios):.3f}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
