"""Errors against float64 beside those of torch's cuDNN and flash backends, on the same inputs, outliers included.

    python3 bench/errors_cuda.py build/release/libsirdar.so [--head-dims 64,128,256] [--dtypes bf16,fp16]

Relative root mean square errors of the output and of the three gradients. `classic` is the forward with a running
maximum (softmax=classic): there the largest weight of a row is 1, which 16 bits hold exactly, and rows that
one weight rules lose only the rounding of the result. The guarded reference rounds that weight like any other.
"""

import argparse
import itertools
import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from sirdar_ctypes import Library

BATCH, ROWS, HEADS = 1, 1024, 8
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
VARIANTS = {"sirdar": (), "classic": ("softmax=classic",)}
GRADIENTS = ("dq", "dk", "dv")


def normal(*shape):
    return torch.randn(shape, device="cuda")


def outliers(*shape):
    """[Shah24 4.3]: one entry of a thousand is ten times larger."""
    return normal(*shape) + 10 * normal(*shape) * (torch.rand(shape, device="cuda") < 1e-3)


def channels(*shape):
    """Two columns are large in all rows, as in the keys of trained models."""
    x = normal(*shape)
    x[..., :: shape[-1] // 2] += 8
    return x


def large(*shape):
    return 4 * normal(*shape)


def growing(*shape):
    """Rows grow along the sequence, so that maxima keep moving."""
    return normal(*shape) * torch.linspace(0.1, 4, shape[1], device="cuda")[:, None, None]


def heads_first(tensors):
    return [x.transpose(1, 2) for x in tensors]


def exact(q, k, v, dout, causal):
    """out, dq, dk and dv in float64, [batch, rows, heads, columns]."""
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    query, key, value = heads_first((q, k, v))
    scores = query @ key.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        hidden = torch.ones(scores.shape[-2:], device="cuda", dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    out = (torch.softmax(scores, -1) @ value).transpose(1, 2)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), dout.double())]


def theirs(backend, q, k, v, dout, causal):
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    with sdpa_kernel([backend]):
        out = F.scaled_dot_product_attention(*heads_first((q, k, v)), is_causal=causal)
        out = out.transpose(1, 2)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), dout)]


def run(plan, tensors):
    for name, tensor in tensors.items():
        plan.set(name, tensor)
    plan.run(torch.cuda.current_stream().cuda_stream)


def ours(library, words, knobs, q, k, v, dout):
    out, lse = torch.empty_like(q), torch.empty(BATCH, HEADS, ROWS, device="cuda")
    forward = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
    run(library.plan(f"fwd {words} lse", device="cuda", knobs=knobs), forward)
    gradients = {name: torch.empty_like(q) for name in GRADIENTS}
    run(library.plan(f"bwd {words}", device="cuda"), forward | gradients | {"dout": dout})
    return [out, *gradients.values()]


def relative(found, wanted):
    return [float((f - w).square().mean().sqrt() / w.square().mean().sqrt())
            for f, w in zip(found, wanted)]


def compare(library, kind, dtype, head_dim, causal):
    torch.manual_seed(head_dim)
    shape = (BATCH, ROWS, HEADS, head_dim)
    q, k, v, dout = (draw(*shape).to(DTYPES[dtype]) for draw in (kind, kind, kind, normal))
    wanted = exact(q, k, v, dout, causal)
    words = f"b{BATCH} s{ROWS} h{HEADS} d{head_dim} {dtype}" + " causal" * causal
    errors = {name: relative(ours(library, words, knobs, q, k, v, dout), wanted)
              for name, knobs in VARIANTS.items()}
    for name, backend in BACKENDS.items():
        errors[name] = relative(theirs(backend, q, k, v, dout, causal), wanted)
    return errors


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("library")
    parser.add_argument("--head-dims", default="64,128,256")
    parser.add_argument("--dtypes", default="bf16,fp16")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    library = Library(arguments.library)
    kinds = (normal, outliers, channels, large, growing)
    head_dims = [int(word) for word in arguments.head_dims.split(",")]
    for choice in itertools.product(kinds, arguments.dtypes.split(","), head_dims, (False, True)):
        kind, dtype, head_dim, causal = choice
        errors = compare(library, *choice)
        for i, result in enumerate(("out", *GRADIENTS)):
            words = "  ".join(f"{name} {e[i]:.2e}" for name, e in errors.items()
                              if i == 0 or name != "classic")
            mask = "causal" if causal else "full"
            print(f"{kind.__name__:8} {dtype} d{head_dim:<3} {mask:6} {result:3}  {words}")


if __name__ == "__main__":
    main()
