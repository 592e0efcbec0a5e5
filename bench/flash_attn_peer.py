"""flash-attn as a peer of the comparisons, where it is installed.

FlashAttention-3 is `flash_attn_interface`, or its forward alone, `pip install fa3-fwd`; FlashAttention-4 is
`flash_attn.cute` (whose Hopper kernels are a port of FlashAttention-3's; `pip install flash-attn-4
'nvidia-cutlass-dsl[cu13]'`).
"""

import importlib

import torch

MODULES = {"fa3": ("flash_attn_interface", "fa3_fwd_interface"), "fa4": ("flash_attn.cute",)}
FORWARD_ALONE = {"fa3_fwd_interface"}


def functions(backward=False):
    """flash_attn_func of each version that can be imported, by the names above."""
    found = {}
    for name, modules in MODULES.items():
        for module in modules:
            if name in found or (backward and module in FORWARD_ALONE):
                continue
            try:
                found[name] = importlib.import_module(module).flash_attn_func
            except ImportError as error:
                if error.name != module.partition(".")[0]:  # it is there, and something that it needs is not
                    print(f"{name}: {module}: {error}", flush=True)
    return found


def relative(found, right):
    return float((found.double() - right.double()).norm() / right.double().norm())


def agreeing(runners, ours, limit):
    """Those of `runners`, functions by name, whose tensors differ from ours by less than `limit`, relatively; the
    others are named, and left out."""
    kept = {}
    for name, runner in runners.items():
        try:
            difference = max(relative(f, o) for f, o in zip(runner(), ours))
        except Exception as error:  # a version that refuses this line
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        if difference < limit:
            kept[name] = runner
        else:
            print(f"{name}: differs by {difference:.2e}", flush=True)
    return kept


def out_of(result):
    return result[0] if isinstance(result, tuple) else result


def forward_runners(q, k, v, causal):
    """A function that returns (out,) for each version; rows of [batch, seqlen, heads, head_dim]."""
    return {
        name: lambda function=function: (out_of(function(q, k, v, causal=causal)),)
        for name, function in functions().items()
    }


def backward_runners(q, k, v, dout, causal):
    """A function that returns (dq, dk, dv) for each version, in any order and in a fixed one; the forward runs at its
    first call."""

    def runner(function, deterministic):
        kept = []

        def run():
            if not kept:
                inputs = [x.detach().requires_grad_() for x in (q, k, v)]
                out = out_of(function(*inputs, causal=causal, deterministic=deterministic))
                kept.extend((out, inputs))
            out, inputs = kept
            return torch.autograd.grad(out, inputs, dout, retain_graph=True)

        return run

    return {
        name + "_det" * deterministic: runner(function, deterministic)
        for name, function in functions(backward=True).items() for deterministic in (False, True)
    }
