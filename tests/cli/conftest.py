"""Runs the `sirdar` command and writes the files it reads."""

import json
import os
import pathlib
import struct
import subprocess

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def binary():
    path = os.environ.get("SIRDAR_BIN") or os.environ.get("SIRDAR") or ROOT / "build/release/sirdar"
    return str(pathlib.Path(path).resolve())


class Result:
    def __init__(self, process):
        self.code = process.returncode
        self.out = process.stdout
        self.err = process.stderr


class Runner:
    """Runs the command in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, *arguments, env=None):
        return Result(subprocess.run(
            [binary(), *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
            timeout=300, env={**os.environ, **(env or {})}))

    def ok(self, *arguments, **kwargs):
        result = self(*arguments, **kwargs)
        assert result.code == 0, (arguments, result.out, result.err)
        return result

    def refused(self, *arguments, says=()):
        """Exit code 2, nothing on stdout, one sentence on stderr that has these words."""
        before = snapshot(self.folder)
        result = self(*arguments)
        assert result.code == 2, (arguments, result.code, result.out, result.err)
        assert result.out == ""
        lines = [line for line in result.err.splitlines() if not line.startswith("note: ")]
        assert len(lines) == 1 and lines[0].startswith("sirdar: "), result.err
        assert lines[0][-1] in ".?", result.err
        for word in [says] if isinstance(says, str) else says:
            assert word in lines[0], (word, lines[0])
        assert snapshot(self.folder) == before, "a refusal changed files"
        return lines[0]

    def save(self, **arrays):
        for name, array in arrays.items():
            np.save(self.folder / f"{name}.npy", array)

    def load(self, name):
        return np.load(self.folder / f"{name}.npy", allow_pickle=False)


def snapshot(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


@pytest.fixture
def sirdar(tmp_path):
    return Runner(tmp_path)


def save_raw_safetensors(path, tensors):
    """tensors: name -> (dtype as the format spells it, shape, bytes)"""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def load_raw_safetensors(path):
    """name -> (dtype, shape, bytes)"""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    data = content[8 + length:]
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items() if name != "__metadata__"}


def to_bf16(array):
    """float array -> uint16 bits, rounded to nearest even (finite values)."""
    bits = np.asarray(array, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)
