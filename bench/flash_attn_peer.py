"""flash-attn as a peer of the comparisons, where it is installed.

FlashAttention-3 is `flash_attn_interface`, FlashAttention-4 `flash_attn.cute` (whose Hopper kernels are a
port of FlashAttention-3's; `pip install flash-attn-4 'nvidia-cutlass-dsl[cu13]'`).
"""

import importlib

import torch

MODULES = {"fa3": "flash_attn_interface", "fa4": "flash_attn.cute"}


def functions():
    """flash_attn_func of each version that can be imported, by the names above."""
    found = {}
    for name, module in MODULES.items():
        try:
            found[name] = importlib.import_module(module).flash_attn_func
        except ImportError:
            pass
    return found


def out_of(result):
    return result[0] if isinstance(result, tuple) else result


def forward_runners(q, k, v, causal):
    """A function that returns out for each version; rows of [batch, seqlen, heads, head_dim]."""
    return {
        name: lambda function=function: out_of(function(q, k, v, causal=causal))
        for name, function in functions().items()
    }


def backward_runners(q, k, v, dout, causal):
    """A function that returns (dq, dk, dv) for each version, in any order and in a fixed one."""
    runners = {}
    for name, function in functions().items():
        for deterministic in (False, True):
            inputs = [x.detach().requires_grad_() for x in (q, k, v)]
            out = out_of(function(*inputs, causal=causal, deterministic=deterministic))
            runners[name + "_det" * deterministic] = (
                lambda out=out, inputs=inputs: torch.autograd.grad(
                    out, inputs, dout, retain_graph=True)
            )
    return runners
