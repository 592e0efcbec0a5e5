"""Models of transformers with random weights on a GPU: attn_implementation="sirdar" against eager.

usage: PYTHONPATH=python python3 tests/device/models_on_gpu.py [arguments of checks.py]
"""

import copy
import sys

import sirdar.compat

sirdar.compat.install()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import transformers  # noqa: E402
from checks import check, main, within  # noqa: E402

import sirdar.transformers  # noqa: E402

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
if torch.cuda.is_available():  # transformers allows this name on a GPU only
    transformers_check("llama", "flash_attention_2")


def pair(kind, config, device):
    """A model twice, in fp32: eager and sirdar."""
    models = []
    for one in ("eager", "sirdar"):
        torch.manual_seed(0)
        models.append(kind.from_config(copy.deepcopy(config), attn_implementation=one).to(device))
    return models


def encoder_check(name, config, inputs):
    """Hidden states and gradients in fp32, where rounding is small."""

    def run(device):
        results = []
        given = inputs(device)
        for made in pair(transformers.AutoModel, config(), device):
            made.eval()  # without dropout
            out = made(**given).last_hidden_state
            if "attention_mask" in given:
                out = out[given["attention_mask"].bool()]
            out.sin().sum().backward()
            grads = [p.grad for p in made.parameters() if p.grad is not None]
            largest = max(g.abs().max() for g in grads)
            results.append([out, *(g for g in grads if g.abs().max() > 1e-2 * largest)])
        return within(results[1], results[0], 2e-3)

    run.__name__ = f"transformers_{name}"
    check(run)


def sentences(device):
    ids = torch.randint(1, 60, (3, 40), generator=torch.Generator().manual_seed(1))
    shown = torch.arange(40) < torch.tensor([[40], [17], [33]])
    return {"input_ids": ids.to(device), "attention_mask": shown.long().to(device)}


def images(device):
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    return {"pixel_values": pixels.to(device)}


ENCODER = {
    "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
encoder_check("bert", lambda: transformers.BertConfig(vocab_size=64, **ENCODER), sentences)
encoder_check("vit", lambda: transformers.ViTConfig(image_size=16, patch_size=4, **ENCODER), images)


def generation_check(cache):
    def run(device):
        ids = torch.randint(1, 60, (2, 7), generator=torch.Generator().manual_seed(1)).to(device)
        shown = torch.ones_like(ids)
        shown[0, :2] = 0
        logits = []
        for made in pair(transformers.AutoModelForCausalLM, MODELS["llama"](), device):
            out = made.eval().generate(
                ids, attention_mask=shown, max_new_tokens=8, do_sample=False, pad_token_id=0,
                eos_token_id=None, output_logits=True, return_dict_in_generate=True,
                cache_implementation=cache, disable_compile=True,
            )  # fmt: skip
            logits.append(out.logits)
        return within(logits[1], logits[0], 2e-3)

    run.__name__ = f"transformers_generate_{cache}"
    check(run)


generation_check("dynamic")
generation_check("static")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    sirdar.transformers.register()
    sys.exit(main(__doc__.split("\n")[0]))
