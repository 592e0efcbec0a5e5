"""The programs of examples/python run, and what they check about themselves holds."""

import os
import pathlib
import subprocess
import sys

import pytest
import sirdar

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = pathlib.Path(sirdar.__file__).parents[1]


@pytest.mark.parametrize(
    "name, arguments, shown",
    [
        ("replace_flash_attn.py", [], "decoding"),
        (
            "train_small_model.py",
            ["--steps", "60", "--plot", "losses.svg"],
            "slopes of the first layer",
        ),
        ("bert_on_cpu.py", [], "cosines"),
        ("masks_by_lambda.py", ["plot.svg"], "ALiBi"),
        ("../attention.py", [], "cpu.forward"),
    ],
)
def test_an_example(name, arguments, shown, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "python" / name, *arguments], cwd=tmp_path, text=True,
        capture_output=True, timeout=300, env=os.environ | {"PYTHONPATH": str(PACKAGE), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
    if "--plot" in arguments:
        assert (tmp_path / "losses.svg").stat().st_size > 1000
