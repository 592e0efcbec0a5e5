"""What torch_on_gpu.py and models_on_gpu.py are made of: checks by name, and what they compare with.

The arguments of both: [CHECK...] [--device cpu] [--seconds N] [--part I/N] [--list]

A line a check is printed, and at the end the number that failed, which is the exit code. A check that the
library refuses counts as refused, with the sentence. On a CPU what needs a GPU is left out. CHECK: a part of
the names of those that are run. After N seconds no further check begins, and those that did not are named.
I/N: every Nth check from the Ith, 1 to N, for N processes side by side.
"""

import argparse
import time
import traceback

import torch
import torch.nn.functional as F

import sirdar.torch

CHECKS = {}
_needs_gpu = set()


def check(function):
    CHECKS[function.__name__] = function
    return function


def check_of_gpu(function):
    """One that a CPU cannot do."""
    _needs_gpu.add(function.__name__)
    return check(function)


def draw(device, *shape, dtype=torch.bfloat16, grad=True):
    return torch.randn(*shape, device=device, dtype=dtype).requires_grad_(grad)


def error(actual, wanted):
    """The largest error in units of the largest magnitude."""
    return ((actual.double() - wanted.double()).abs().max() / wanted.double().abs().max()).item()


def within(actual, wanted, limit=0.02):
    worst = max(error(one, two) for one, two in zip(actual, wanted))
    assert worst <= limit, f"largest relative error {worst:.1e}"
    return f"{worst:.1e}"


def exact(q, k, v, **options):
    """Output and gradients of torch's formula in float64, [batch, heads, seqlen, dim]."""
    wide = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
    out = F.scaled_dot_product_attention(*wide, **options)
    return (out, *torch.autograd.grad(out.sin().sum(), wide))


def ours(q, k, v, function=sirdar.torch.scaled_dot_product_attention, **options):
    out = function(q, k, v, **options)
    return (out, *torch.autograd.grad(out.sin().sum(), (q, k, v)))


def parse_arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("checks", nargs="*", metavar="CHECK")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="N")
    parser.add_argument("--part", default="1/1", metavar="I/N")
    parser.add_argument("--list", action="store_true", help="name the checks and end")
    return parser.parse_args()


def chosen(arguments):
    names = [
        name for name in CHECKS
        if not arguments.checks or any(part in name for part in arguments.checks)
    ]  # fmt: skip
    if arguments.device == "cpu":
        names = [name for name in names if name not in _needs_gpu]
    part, parts = map(int, arguments.part.split("/"))
    return names[part - 1 :: parts]


def run(name, device):
    """Prints what became of a check; whether it failed."""
    torch.manual_seed(0)
    begin = time.perf_counter()

    def tell(what, words):
        took = time.perf_counter() - begin
        print(f"{what:<8} {name} ({took:.1f} s): {words}", flush=True)

    try:
        tell("ok", CHECKS[name](device))
    except NotImplementedError as refusal:
        tell("refused", refusal)
    except Exception as trouble:
        tell("FAILED", f"{type(trouble).__name__}: {str(trouble)[:600]}")
        traceback.print_exc(limit=-3)
        return True
    return False


def main(description):
    """Runs what the command line names; returns the number that failed."""
    arguments = parse_arguments(description)
    names = chosen(arguments)
    if arguments.list:
        print("\n".join(names))
        return 0
    begin, failed = time.perf_counter(), 0
    while names and time.perf_counter() - begin < arguments.seconds:
        failed += run(names.pop(0), arguments.device)
    if names:
        print(f"not begun after {arguments.seconds:g} s: {' '.join(names)}")
    print(f"{failed} failed")
    return failed
