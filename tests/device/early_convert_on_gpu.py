"""A backward whose convert runs beside the products, again and again beside other work on the GPU.

usage: PYTHONPATH=python python3 tests/device/early_convert_on_gpu.py [--replays 60] [--only d64]

Each problem's backward is captured as a CUDA graph and replayed while other streams multiply matrices, compute
forwards and another backward, so that its blocks find multiprocessors in any order. Outputs hold NaN before each
replay; every replay must have the bits of the first run alone, whose first and last sequence are compared with
float64. Prints a line a problem and ends with the number that failed, which is the exit code.
"""

import argparse
import functools
import itertools
import math
import sys

import torch
from limits_on_gpu import run

import sirdar

TOKENS, COLUMNS = 8192, 1024  # rows in all, and of a row


def draw(seqlen, dim):
    return torch.randn(
        TOKENS // seqlen, seqlen, COLUMNS // dim, dim, device="cuda", dtype=torch.bfloat16
    )


class Backward:
    """One problem, its tensors and its gradients."""

    def __init__(self, seqlen, dim, causal):
        self.q, self.k, self.v, self.dout = (draw(seqlen, dim) for _ in range(4))
        self.causal = causal
        self.out, self.lse = sirdar.attention(self.q, self.k, self.v, causal=causal, return_lse=True)
        self.grads = [torch.empty_like(self.q) for _ in range(3)]
        # Where the library would not begin early, too; under a mask convert has multiprocessors of its own.
        knobs = {"converts_early": True, "num_spare": 5 if causal else 0}
        words = f"bwd b{TOKENS // seqlen} s{seqlen} h{COLUMNS // dim} d{dim} bf16{' causal' if causal else ''}"
        # Held, for a plan's kernels must be there as long as a graph has them.
        self.plan = sirdar.plan(words, device="cuda", knobs=knobs).prepare()
        assert "converts_early=true" in self.plan.explain()

    def run(self):
        for grad in self.grads:
            grad.fill_(math.nan)
        self.plan.run(
            dout=self.dout, q=self.q, k=self.k, v=self.v, out=self.out, lse=self.lse,
            dq=self.grads[0], dk=self.grads[1], dv=self.grads[2],
        )  # fmt: skip

    def right(self, batch):
        """Gradients of all heads of a sequence by float64."""
        wide = [x[batch].transpose(0, 1).double().requires_grad_() for x in (self.q, self.k, self.v)]
        seqlen = self.q.shape[1]
        for head in range(len(wide[0])):
            q, k, v = (x[head] for x in wide)
            scores = q @ k.T / math.sqrt(q.shape[1])
            if self.causal:
                hidden = torch.ones(seqlen, seqlen, dtype=torch.bool, device="cuda").triu(1)
                scores = scores.masked_fill(hidden, -math.inf)
            out = torch.softmax(scores, -1) @ v
            out.backward(self.dout[batch, :, head].double())
        return [x.grad.transpose(0, 1) for x in wide]

    def error(self):
        worst = 0.0
        for batch in {0, len(self.q) - 1}:
            for grad, right in zip(self.grads, self.right(batch)):
                off = (grad[batch].double() - right).abs().max() / right.abs().max()
                worst = max(worst, off.item())
        return worst


class OtherWork:
    """What else runs at the same time, each on a stream of its own."""

    def __init__(self, dim):
        self.matrix = torch.randn(3000, 3000, device="cuda", dtype=torch.bfloat16)
        self.other = Backward(1024, dim, False)
        self.streams = [torch.cuda.Stream() for _ in range(3)]
        self.other.run()

    def start(self):
        q, k, v = self.other.q, self.other.k, self.other.v
        works = (
            lambda: self.matrix @ self.matrix,
            lambda: sirdar.attention(q, k, v, causal=True),
            self.other.run,
        )
        for stream, work in zip(self.streams, works):
            with torch.cuda.stream(stream):
                work()


def check(seqlen, dim, causal, replays):
    one, other = Backward(seqlen, dim, causal), OtherWork(dim)
    one.run()
    torch.cuda.synchronize()
    error = one.error()
    assert error <= 0.01, f"largest relative error {error:.1e}"
    first = [grad.clone() for grad in one.grads]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one.run()
    differ = torch.zeros(3, dtype=torch.int64, device="cuda")
    for _ in range(replays):
        other.start()
        graph.replay()
        for n, (a, b) in enumerate(zip(first, one.grads)):
            differ[n] += (a.view(torch.int16) != b.view(torch.int16)).any()
        other.start()
    torch.cuda.synchronize()
    assert not differ.any(), f"of {replays} replays dq, dk, dv differ in {differ.tolist()}"
    return f"{replays} replays, largest relative error {error:.1e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--replays", type=int, default=60)
    parser.add_argument("--only", default="", help="problems that have this in them")
    arguments = parser.parse_args()
    checks = {}
    for dim, causal, seqlen in itertools.product((64, 128), (False, True), (1024, 2048, 4096)):
        name = f"d{dim} s{seqlen}{' causal' if causal else ''}"
        if arguments.only in name:
            checks[name] = functools.partial(check, seqlen, dim, causal, arguments.replays)
    return run(checks)


if __name__ == "__main__":
    sys.exit(main())
