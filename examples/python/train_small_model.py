"""Trains a small causal transformer on a task that only attention solves: to repeat what it has read.

usage: train_small_model.py [--steps N] [--plot FILE]

A sequence is 24 random letters, then the same 24 again; the model predicts the next letter. The second half
can be known exactly, by looking 24 letters back. Attention has a learned sink and a learned ALiBi-like
slope per head, written as an expression: both receive gradients. The run is repeated with torch's own
formula in place of the library, and the losses must agree.
"""

import argparse

import torch
import torch.nn.functional as F

import sirdar.torch

LETTERS, LENGTH, WIDTH, HEADS, LAYERS = 16, 24, 64, 4, 2


def by_library(q, k, v, sink, slope):
    return sirdar.torch.attention(
        q,
        k,
        v,
        causal=True,
        sink=sink,
        score_mod="score - slope[h] * (q_pos - k)",
        tensors={"slope": slope},
    )


def by_formula(q, k, v, sink, slope):
    """The same with every score in memory."""
    places = torch.arange(q.shape[1])
    distance = places[:, None] - places
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    scores = (scores - slope[:, None, None] * distance).masked_fill(distance < 0, -torch.inf)
    sinks = sink[:, None, None].expand(*scores.shape[:3], 1)
    weights = torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


class Block(torch.nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.attend = attend
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.GELU(), torch.nn.Linear(2 * WIDTH, WIDTH)
        )
        self.sink = torch.nn.Parameter(torch.zeros(HEADS))
        self.slope = torch.nn.Parameter(torch.zeros(HEADS))

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).unbind(-3)
        x = x + self.out(self.attend(q, k, v, self.sink, self.slope).flatten(-2))
        return x + self.mlp(self.norms[1](x))


class Model(torch.nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.letters = torch.nn.Embedding(LETTERS, WIDTH)
        self.places = torch.nn.Embedding(2 * LENGTH, WIDTH)
        self.blocks = torch.nn.Sequential(*(Block(attend) for _ in range(LAYERS)))
        self.head = torch.nn.Linear(WIDTH, LETTERS)

    def forward(self, ids):
        x = self.letters(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.blocks(x))


def train(attend, steps):
    """The loss of every step, over the second half."""
    torch.manual_seed(0)
    model = Model(attend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        half = torch.randint(0, LETTERS, (16, LENGTH))
        ids = torch.cat([half, half], dim=1)
        logits = model(ids[:, :-1])[:, LENGTH - 1 :]
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, LENGTH:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def plot(losses, file):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(losses)
    axes.set_xlabel("step")
    axes.set_ylabel("loss of the repeated half")
    axes.set_ylim(bottom=0)
    figure.savefig(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--plot", metavar="FILE", help="draws the losses, needs matplotlib")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # tensors are too small to be shared out
    losses, model = train(by_library, arguments.steps)
    for step in range(0, arguments.steps, max(arguments.steps // 5, 1)):
        print(f"step {step:4}  loss {losses[step]:.3f}")
    print(f"step {arguments.steps - 1:4}  loss {losses[-1]:.3f}")
    print("slopes of the first layer", [round(s, 3) for s in model.blocks[0].slope.tolist()])
    compared = min(arguments.steps, 10)
    wanted, _ = train(by_formula, compared)
    difference = max(abs(a - b) for a, b in zip(losses, wanted))
    print(f"first {compared} losses differ from the plain formula's by {difference:.1e} at most")
    assert difference < 1e-4
    if arguments.plot:
        plot(losses, arguments.plot)


if __name__ == "__main__":
    main()
