import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path):
    """Writes files below a fresh folder: tree({"src/a.cc": "text"}) returns the folder."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return write


@pytest.fixture
def tool():
    """Runs a script of tools/ and returns (exit code, output)."""

    def run(name, *arguments):
        done = subprocess.run(
            [sys.executable, ROOT / "tools" / name, *map(str, arguments)],
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

    return run
