"""What sirdar.torch, the flash-attn interfaces and transformers do on a GPU, against float64 and eager.

usage: PYTHONPATH=python python3 tests/device/torch_on_gpu.py [--device cpu]

Prints a line a check and ends with the number that failed, which is the exit code. A check that the library
refuses counts as refused, with the sentence. On a CPU what needs a GPU is left out.
"""

import argparse
import sys
import traceback

import sirdar.compat

sirdar.compat.install()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import transformers  # noqa: E402
from flash_attn import flash_attn_func, flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache  # noqa: E402
from flash_attn.bert_padding import pad_input, unpad_input  # noqa: E402

import sirdar.torch  # noqa: E402
import sirdar.transformers  # noqa: E402

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


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


@check
def forward(device):
    q, k, v = (draw(device, 2, 4, 513, 64, grad=False) for _ in range(3))
    out = sirdar.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    return within([out], exact(q, k, v, is_causal=True)[:1])


@check
def forward_and_backward(device):
    q, k, v = (draw(device, 2, 4, 513, 64) for _ in range(3))
    return within(ours(q, k, v, is_causal=True), exact(q, k, v, is_causal=True))


@check
def groups_of_heads(device):
    q, k, v = (
        draw(device, 2, 8, 300, 128),
        draw(device, 2, 2, 300, 128),
        draw(device, 2, 2, 300, 128),
    )
    return within(ours(q, k, v, enable_gqa=True), exact(q, k, v, enable_gqa=True))


@check
def masks(device):
    q, k, v = (draw(device, 2, 4, 200, 64) for _ in range(3))
    shown = (torch.rand(2, 1, 200, 200, device=device) > 0.4).logical_or(
        torch.eye(200, device=device).bool()
    )
    return within(ours(q, k, v, attn_mask=shown), exact(q, k, v, attn_mask=shown))


@check
def compiled(device):
    q, k, v = (draw(device, 2, 4, 200, 64) for _ in range(3))
    function = torch.compile(sirdar.torch.scaled_dot_product_attention, fullgraph=True)
    return within(ours(q, k, v, function, is_causal=True), exact(q, k, v, is_causal=True))


@check
def autocast(device):
    q, k, v = (draw(device, 2, 4, 200, 64, dtype=torch.float32) for _ in range(3))
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        results = ours(q, k, v)
    assert results[0].dtype == torch.bfloat16 and results[1].dtype == torch.float32
    return within(results, exact(q, k, v))


@check
def another_stream(device):
    q, k, v = (draw(device, 2, 4, 2048, 64, grad=False) for _ in range(3))
    wanted, stream = exact(q, k, v)[0], torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        late = [
            tensor * 1 for tensor in (q, k, v)
        ]  # made on this stream: another would see too little
        out = sirdar.torch.scaled_dot_product_attention(*late)
    torch.cuda.current_stream().wait_stream(stream)
    return within([out], [wanted])


@check
def graph(device):
    q, k, v = (draw(device, 2, 4, 512, 64, grad=False) for _ in range(3))
    sirdar.torch.scaled_dot_product_attention(q, k, v)  # compiles
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = sirdar.torch.scaled_dot_product_attention(q, k, v)
    for tensor in (q, k, v):
        tensor.copy_(torch.randn_like(tensor))
    captured.replay()
    torch.cuda.synchronize()
    return within([out], exact(q, k, v)[:1])


@check
def flash_attn_padded(device):
    qkv = draw(device, 2, 300, 3, 4, 64)
    is_token = torch.arange(300, device=device) < torch.tensor([[120], [300]], device=device)
    tokens, indices, starts, longest, _ = unpad_input(qkv, is_token)
    out = pad_input(
        flash_attn_varlen_qkvpacked_func(tokens, starts, longest, causal=True), indices, 2, 300
    )
    (grad,) = torch.autograd.grad(out.sin().sum(), qkv)
    wanted = [
        exact(*(x.transpose(1, 2) for x in qkv[b : b + 1, :n].unbind(2)), is_causal=True)
        for b, n in enumerate((120, 300))
    ]
    pairs = [
        (out[b, :n], one[0][0].transpose(0, 1))
        for b, (n, one) in enumerate(zip((120, 300), wanted))
    ]
    pairs += [
        (grad[b, :n, i], one[1 + i][0].transpose(0, 1))
        for b, (n, one) in enumerate(zip((120, 300), wanted))
        for i in range(3)
    ]
    return within(*zip(*pairs))


@check
def flash_attn_decoding(device):
    q, k, v = (
        draw(device, 2, 1, 8, 64, grad=False),
        draw(device, 40, 16, 2, 64, grad=False),
        draw(device, 40, 16, 2, 64, grad=False),
    )
    table = torch.randperm(40, device=device)[:32].view(2, 16).int()
    lengths = torch.tensor([200, 17], dtype=torch.int32, device=device)
    out = flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, block_table=table)
    for b, length in enumerate((200, 17)):
        keys, values = (x[table[b].long()].flatten(0, 1)[None, :length] for x in (k, v))
        wanted = exact(*(x.transpose(1, 2) for x in (q[b : b + 1], keys, values)), enable_gqa=True)[
            0
        ]
        result = within([out[b : b + 1]], [wanted.transpose(1, 2)])
    return result


@check
def flash_attn_dropout(device):
    q, k = draw(device, 1, 256, 2, 64, grad=False), draw(device, 1, 256, 2, 64, grad=False)
    v = torch.eye(256, device=device, dtype=torch.bfloat16)[None, :, None].expand(1, 256, 2, 256)
    weights = flash_attn_func(q, k, v, dropout_p=0.25)
    share = (weights == 0).double().mean().item()
    assert abs(share - 0.25) < 0.01, share
    return f"{share:.3f} dropped"


SMALL = {
    "vocab_size": 64, "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 32,
}  # fmt: skip
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "qwen": lambda: transformers.Qwen3Config(
        **SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "gemma": lambda: transformers.Gemma2Config(
        **SMALL, sliding_window=8, attn_logit_softcapping=5.0
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SMALL, sliding_window=8, num_local_experts=2, num_experts_per_tok=2
    ),
}


def model(name, implementation, device, dtype, weights):
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(
        MODELS[name](), attn_implementation=implementation
    )
    for module in made.modules():
        if hasattr(module, "sinks"):
            torch.nn.init.normal_(module.sinks)
    made = made.to(device=device, dtype=torch.bfloat16)
    if weights is not None:
        made.load_state_dict(weights)
    return made.to(dtype).train()


def lost(made, exact):
    """1 - cosine of each logit tensor and gradient."""
    return [
        1 - F.cosine_similarity(a.double().flatten(), b.double().flatten(), dim=0).item()
        for a, b in zip(made, exact)
    ]


def transformers_check(name, implementation):
    """Against eager in fp32; eager in bf16 shows what rounding does."""

    def run(device):
        ids = torch.randint(1, 60, (2, 40), generator=torch.Generator().manual_seed(1)).to(device)
        shown = torch.ones_like(ids)
        shown[0, :9] = 0
        labels = ids.masked_fill(shown == 0, -100)
        labels[0, 9] = -100  # the token before it is padding
        weights = model(name, "eager", device, torch.bfloat16, None).state_dict()
        results = []
        for one, dtype in (
            ("eager", torch.float32),
            ("eager", torch.bfloat16),
            (implementation, torch.bfloat16),
        ):
            made = model(name, one, device, dtype, weights)
            result = made(ids, attention_mask=shown, labels=labels)
            result.loss.backward()
            results.append(
                [
                    result.logits[shown.bool()],
                    *(p.grad for p in made.parameters() if p.grad is not None and p.numel() > 8),
                ]
            )
        eager, own = lost(results[1], results[0]), lost(results[2], results[0])
        worst = max(a - 3 * b for a, b in zip(own, eager))
        assert worst < 0.005, (
            f"cosines lose {worst:.4f} beyond three times what eager's lose in bf16"
        )
        return f"1 - cosine of logits {own[0]:.1e} (eager {eager[0]:.1e}), of a gradient at most {max(own):.1e} ({max(eager):.1e})"

    run.__name__ = f"transformers_{name}_{implementation}"
    check(run)


for each in MODELS:
    transformers_check(each, "sirdar")
transformers_check("llama", "flash_attention_2")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    transformers.logging.set_verbosity_error()
    sirdar.transformers.register()
    failed = 0
    for name, function in CHECKS.items():
        if device == "cpu" and name in (
            "another_stream",
            "graph",
            "transformers_llama_flash_attention_2",
        ):
            continue
        torch.manual_seed(0)
        try:
            print(f"ok       {name}: {function(device)}", flush=True)
        except NotImplementedError as refusal:
            print(f"refused  {name}: {refusal}", flush=True)
        except Exception as trouble:
            failed += 1
            print(f"FAILED   {name}: {type(trouble).__name__}: {str(trouble)[:600]}", flush=True)
            traceback.print_exc(limit=-3)
    print(f"{failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
