"""The demo: the attention of a real transformer over real text, computed by the sirdar command.

usage: demo.py --sirdar COMMAND

Each part runs `sirdar attend --check` on the shipped activations (minilm/capture.py says where they are
from) and compares the result twice more: with a plain float64 formula in NumPy below, and where the model
computed the same thing, with the model's own output. Exit code 1 if anything is off.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import load_file

HERE = pathlib.Path(__file__).parent
DATA = HERE / "minilm/activations.safetensors"
WINDOW = 32  # keys besides the diagonal, to the left

# title, captured part, flags of attend, whether the model computed the same attention
PARTS = [
    ("One passage, every word sees every word", "passage", [], True),
    ("Four texts of different lengths, padded to the longest", "batch", ["--seqused-k"], True),
    ("The passage again, causal: a word sees itself and the words before it", "passage", ["--causal"], False),
    (f"The passage again, causal, at most {WINDOW} words back", "passage", [f"--window={WINDOW},0"], False),
]
PASSAGE_PROBLEM = "fwd b1 sq256 sk256 hq12 hkv12 d32 fp32 causal"
# The heads of the model on a longer text, which is where the method matters.
SPEED_PROBLEM = "fwd b1 sq2048 sk2048 hq12 hkv12 d32 fp32 causal"


def expected(tensors, part, flags):
    """The operation in float64 without any tiling, and the largest error that fp32 may make in it."""
    q, k, v = (tensors[f"{part}.{name}"].astype(np.float64) for name in "qkv")
    scores = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(q.shape[-1])
    distance = np.arange(q.shape[1])[:, None] - np.arange(k.shape[1])[None, :]  # i - j
    visible = np.ones(scores.shape, dtype=bool)
    if "--seqused-k" in flags:
        lengths = tensors[f"{part}.lengths"]
        visible &= (np.arange(k.shape[1]) < lengths[:, None])[:, None, None, :]
    if "--causal" in flags:
        visible &= distance >= 0
    if any(flag.startswith("--window") for flag in flags):
        visible &= (distance >= 0) & (distance <= WINDOW)
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    # A score s rounded to fp32 moves its weight by about |s| * 2^-24 of itself; a few such roundings.
    bound = 4 * 2.0**-24 * np.abs(scores[visible]).max() * np.abs(v).max()
    return np.einsum("bhij,bjhd->bihd", weights, v), bound


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout + done.stderr)
        sys.exit(f"demo: {' '.join(map(str, command))} ended with exit code {done.returncode}.")
    return done.stdout.strip()


def indent(text):
    return "\n".join("    " + line for line in text.splitlines())


def compare(name, result, wanted, bound):
    """Prints the largest difference and returns whether it is within the bound."""
    error = np.abs(result - wanted).max()
    good = bool(np.isfinite(result).all() and error <= bound)
    print(f"    {name:<42} {error:.1e}  ({'within' if good else 'NOT WITHIN'} {bound:.1e})")
    return good


def show(sirdar, tensors, part, flags, model_agrees, out):
    files = [f"--{name}={DATA}:{part}.{name}" for name in "qkv"]
    flags = [f"{f}={DATA}:{part}.lengths" if f == "--seqused-k" else f for f in flags]
    print(indent(run([sirdar, "attend", *files, *flags, "--check", "-o", out])))
    wanted, bound = expected(tensors, part, [flag.split("=")[0] for flag in flags])
    result = np.load(out)
    good = compare("largest difference from NumPy in float64", result, wanted, bound)
    if model_agrees:
        good &= compare("from the model's own attention output", result, tensors[f"{part}.out"], bound)
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sirdar", required=True, type=pathlib.Path)
    sirdar = parser.parse_args().sirdar.resolve()
    tensors = load_file(DATA)
    print("Exact attention over the activations of all-MiniLM-L6-v2 (12 heads of 32) reading the")
    print("Origin of Species. Each line is checked against float64, by Sirdar and by NumPy.")

    good = True
    with tempfile.TemporaryDirectory() as folder:
        for number, (title, part, flags, model_agrees) in enumerate(PARTS, start=1):
            print(f"\n{number}. {title}")
            good &= show(sirdar, tensors, part, flags, model_agrees, pathlib.Path(folder) / "out.npy")

    print(f"\nHow that was planned: sirdar explain '{PASSAGE_PROBLEM}'")
    print(indent(run([sirdar, "explain", PASSAGE_PROBLEM])))

    print(f"\nHow fast that is against the naive method: sirdar bench '{SPEED_PROBLEM}' --against naive")
    print(indent(run([sirdar, "bench", SPEED_PROBLEM, "--against", "naive"])))

    print("\ndemo: " + ("everything agrees" if good else "FAILED: a difference is larger than it may be"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
