"""Times Sirdar's forward or backward with masks and score modifications on one GPU.

    python3 bench/modifications_cuda.py build/release/libsirdar.so [--backward] [--rounds 4]
        [--only alibi,bias] [--dtype bf16] [--seqlen 8192] [--documents 12]
        [--against OTHER.so]... [--knobs "draws_items=false;order=by_head block_n=64"]

16,384 rows in sequences of 8192, H16 D128, random normal. TFLOP/s count the visible pairs alone. Problems
take turns call by call in random order, L2 is flushed before every call, the median counts. A small problem
of each kind is compared with float64 first, and a wrong one ends the run; of the backward two runs must
have the same bits. "apart" is the same number of visible pairs without the modification, as sequences in a
batch ("chunk apart" for documents of 1024, too). Each is timed again with other libraries, and with each list
of knobs; lists are parted by semicolons.
"""

import argparse
import itertools
import math
import pathlib
import random
import statistics

import torch

from flash_attn_peer import relative
from sirdar_ctypes import Library, Refused

BATCH, HEADS, SEQLEN, HEAD_DIM = 2, 16, 8192, 128
DOCUMENTS = 12
SMALL = 1000  # rows of what is compared with float64; those of a bias are within TMA's reach
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Modification:
    """A problem's words, its tensors, the pairs that are visible, and what becomes of a score."""

    def __init__(self, words, visible, tensors=None, change=None):
        self.words, self.visible, self.batch = words, visible, BATCH
        self.tensors, self.change = tensors or {}, change or (lambda scores: scores)


def document_rows(seqlen, count):
    return -(-seqlen // count)


def modifications(seqlen, batch=BATCH, num_documents=DOCUMENTS):
    """Of so many sequences, each of so many documents."""
    position = torch.arange(seqlen, device="cuda")
    distance = position[:, None] - position[None]
    everything, causal = torch.ones_like(distance, dtype=torch.bool), distance >= 0
    noise = torch.rand(seqlen, seqlen, device="cuda") < 0.5
    slopes = torch.tensor([2.0 ** (-(h + 1) / 2) for h in range(HEADS)], device="cuda")

    def documents(rows):
        ids = (position // rows).int()[None].repeat(batch, 1)
        seen = causal & (ids[:, :, None] == ids[:, None])[0]
        tensors = {"document_q": lambda: ids, "document_k": lambda: ids}
        return Modification(" causal document", seen, tensors)

    def bias(word, dtype, sequences=batch):
        def draw():
            return torch.randn(sequences, HEADS, seqlen, seqlen, device="cuda", dtype=dtype)

        return Modification(f" bias:{word}", everything, {"bias": draw}, "bias")

    all_of_them = {
        "plain": Modification("", everything),
        "causal": Modification(" causal", causal),
        "alibi": Modification(
            " causal alibi", causal, {"alibi": lambda: slopes},
            lambda s: s - slopes[None, :, None, None].double() * distance.abs(),
        ),
        "softcap": Modification(" softcap:50", everything, None, lambda s: 50 * torch.tanh(s / 50)),
        "window": Modification(" causal window:1023,", causal & (distance < 1024)),
        "chunk": Modification(
            " causal chunk:1024", causal & (position[:, None] // 1024 == position[None] // 1024)
        ),
        "documents": documents(document_rows(seqlen, num_documents)),
        "documents of 1024": documents(min(1024, seqlen // 4)),
        "boolean": Modification(" mask:qk", causal, {"mask": lambda: causal[None, None]}),
        "random boolean": Modification(" mask:qk", noise, {"mask": lambda: noise[None, None]}),
        "prefix": Modification(
            f' mask_mod:"k <= q_pos || k < {seqlen // 8}"',
            causal | (position < seqlen // 8)[None],
        ),
        "bias": bias("bhqk:bf16", torch.bfloat16),
        "bias of heads": bias("hqk:bf16", torch.bfloat16, 1),
        "bias fp32": bias("bhqk:fp32", torch.float32),
        "score_mod": Modification(
            ' score_mod:"score * 0.5 + 3.0 * tanh(score / 3.0)"', everything, None,
            lambda s: s * 0.5 + 3 * torch.tanh(s / 3),
        ),
    }
    for one in all_of_them.values():
        one.batch = batch
    return all_of_them


class Case:
    dtype = "bf16"  # of q, k and v

    def __init__(self, library, modification, seqlen, knobs=()):
        self.modification = modification
        self.q, self.k, self.v = (
            torch.randn(
                modification.batch, seqlen, HEADS, HEAD_DIM, device="cuda", dtype=DTYPES[self.dtype]
            )
            for _ in range(3)
        )
        self.out = torch.full_like(self.q, math.nan)
        words = f"fwd b{modification.batch} s{seqlen} h{HEADS} d{HEAD_DIM} {self.dtype}{modification.words}"
        self.plan = library.plan(words, device="cuda", knobs=knobs)
        self.tensors = {name: draw() for name, draw in modification.tensors.items()}
        for name in ("q", "k", "v", "out"):
            self.plan.set(name, getattr(self, name))
        for name, tensor in self.tensors.items():
            self.plan.set(name, tensor)
        self.stream = torch.cuda.current_stream().cuda_stream

    def run(self):
        self.plan.run(self.stream)

    def right_out(self, q, k, v):
        """By float64, of [batch, heads, rows, columns]."""
        scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD_DIM)
        change = self.modification.change
        scores = scores + self.tensors["bias"].double() if change == "bias" else change(scores)
        scores = scores.masked_fill(~self.modification.visible, -math.inf)
        return torch.softmax(scores, -1) @ v

    def error(self):
        self.run()
        right = self.right_out(*(x.transpose(1, 2).double() for x in (self.q, self.k, self.v)))
        return relative(self.out, right.transpose(1, 2))


class BackwardCase(Case):
    """The same problem's gradients; the forward has made out and lse."""

    def __init__(self, library, modification, seqlen, knobs=()):
        super().__init__(library, modification, seqlen)
        self.lse = torch.empty(modification.batch, HEADS, seqlen, device="cuda")
        words = f"b{modification.batch} s{seqlen} h{HEADS} d{HEAD_DIM} {self.dtype}{modification.words}"
        forward = library.plan(f"fwd {words} lse", device="cuda")
        self.plan = library.plan(f"bwd {words}", device="cuda", knobs=knobs)
        self.dout = torch.randn_like(self.q)
        self.gradients = [torch.full_like(self.q, math.nan) for _ in range(3)]
        inputs = {"q": self.q, "k": self.k, "v": self.v, "out": self.out, "lse": self.lse}
        for name, tensor in (inputs | self.tensors).items():
            forward.set(name, tensor)
            self.plan.set(name, tensor)
        for name, tensor in zip(("dout", "dq", "dk", "dv"), [self.dout] + self.gradients):
            self.plan.set(name, tensor)
        forward.run(self.stream)

    def error(self):
        self.run()
        found = [gradient.clone() for gradient in self.gradients]
        self.run()
        if not all(torch.equal(a, b) for a, b in zip(found, self.gradients)):
            raise SystemExit(f"{self.modification.words}: two runs differ")
        inputs = [x.transpose(1, 2).double().requires_grad_() for x in (self.q, self.k, self.v)]
        out = self.right_out(*inputs)
        right = torch.autograd.grad(out, inputs, self.dout.transpose(1, 2).double())
        return max(relative(f, r.transpose(1, 2)) for f, r in zip(found, right))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("library")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", help="names, comma by comma")
    parser.add_argument("--dtype", choices=list(DTYPES), default=Case.dtype)
    parser.add_argument("--seqlen", type=int, default=SEQLEN, help="a multiple of 1024")
    parser.add_argument("--documents", type=int, default=DOCUMENTS, help="in a sequence")
    parser.add_argument("--against", action="append", default=[], help="another library")
    parser.add_argument("--knobs", help='lists of "name=value" words')
    arguments = parser.parse_args()
    library = Library(arguments.library)
    Case.dtype = arguments.dtype
    variants = {"": (library, ())}
    for other in arguments.against:
        variants[f" ({pathlib.Path(other).name})"] = (Library(other), ())
    for words in (arguments.knobs or "").split(";"):
        if words.split():
            variants[f" ({words.strip()})"] = (library, words.split())
    seqlen, batch = arguments.seqlen, BATCH * SEQLEN // arguments.seqlen
    count = arguments.documents
    large, small = modifications(seqlen, batch, count), modifications(SMALL)
    lengths = {name: seqlen for name in large}
    # As long as one of the documents, and as many rows in all; as many keys as a row of the window sees.
    short = document_rows(seqlen, count)
    for name, kind, length, sequences in (
        ("causal documents apart", "causal", short, batch * count),
        ("window apart", "plain", 1024, batch * seqlen // 1024),
        ("chunk apart", "causal", 1024, batch * seqlen // 1024),
    ):
        large[name] = modifications(length, sequences)[kind]
        lengths[name], small[name] = length, small[kind]
    names = arguments.only.split(",") if arguments.only else list(large)
    kind = BackwardCase if arguments.backward else Case
    cases = {}
    for name, variant in itertools.product(names, variants):
        used, knobs = variants[variant]
        try:
            error = kind(used, small[name], SMALL, knobs).error()
        except Refused as refused:
            if not variant:
                raise
            print(f"{name}{variant}: {refused}")
            continue
        if not error < 8e-3:
            raise SystemExit(f"{name}{variant}: error {error:.2e}")
        case = cases[name, variant] = kind(used, large[name], lengths[name], knobs)
        print(f"{name}{variant}: {case.plan.name()}, error {error:.2e}", flush=True)
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for case in cases.values():
        case.run()
    times = {key: [] for key in cases}
    for n in range(6 * arguments.rounds):
        order = list(cases)
        random.Random(n).shuffle(order)
        events = {}
        for key in order:
            pair = events[key] = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            flush.zero_()
            pair[0].record()
            cases[key].run()
            pair[1].record()
        torch.cuda.synchronize()
        for key, (start, end) in events.items():
            times[key].append(start.elapsed_time(end))
    for name, variant in cases:
        share = float(large[name].visible.float().mean())
        flop = (10 if arguments.backward else 4) * large[name].batch * HEADS * lengths[name] ** 2 * HEAD_DIM * share
        ms = statistics.median(times[name, variant])
        print(f"{name}{variant}: {share:.4f} visible, {ms:.3f} ms, {flop / ms / 1e9:.0f} TFLOP/s")


if __name__ == "__main__":
    main()
