"""`sirdar attend` on bad input: exit code 2, one sentence, no file touched."""

import json
import os
import struct
import subprocess

import numpy as np
import pytest
from conftest import binary, load_raw_safetensors, save_raw_safetensors, snapshot

INPUTS = ["--q", "q.npy", "--k", "k.npy", "--v", "v.npy"]
OUT = ["-o", "out.npy"]


@pytest.fixture
def files(sirdar):
    """Small good inputs and an output of an earlier run, which refusals must leave alone."""
    x = np.random.default_rng(1).standard_normal((1, 4, 2, 8)).astype(np.float32)
    sirdar.save(q=x, k=x, v=x, dout=x, out=np.arange(3.0), bias=x[0, :, 0, :4], wide=x[..., :5],
                double=x.astype(np.float64), ragged=x[0], ints=np.arange(4), three=x[:, :3],
                heads3=np.zeros((1, 4, 3, 8), np.float32), sums=np.array([0, 4]),
                falling=np.array([0, 3, 1, 4]), far=np.array([0, 2 ** 40]), text=np.array(["a"]),
                one=x[:, :1], table=np.array([[0]]), used=np.array([4]),
                mask8=np.ones((4, 4), np.uint8), complex=x.astype(np.complex64))
    return sirdar


CASES = {
    "no inputs": ([], "--q"),
    "unknown flag": ([*INPUTS, "--causl"], ["--causl", "--causal"]),
    "unknown word": ([*INPUTS, "word"], "word"),
    "no such file": (["--q", "none.npy", "--k", "k.npy", "--v", "v.npy"], ["--q", "none.npy"]),
    "a folder": (["--q", "..npy", "--k", "k.npy", "--v", "v.npy"], "--q"),
    "not a tensor file": (["--q", "q.txt", "--k", "k.npy", "--v", "v.npy"], ["q.txt", "x.npy"]),
    "safetensors without a name": (["--q", "a.safetensors", "--k", "k.npy", "--v", "v.npy"],
                                   "x.safetensors:name"),
    "flag given twice": ([*INPUTS, "--scale", "1", "--scale", "2"], ["--scale", "once"]),
    "two axes": (["--q", "bias.npy", "--k", "k.npy", "--v", "v.npy"], ["--q", "[4, 4]"]),
    "empty name": ([*INPUTS, "--bias", ""], "--bias"),
    "layout": ([*INPUTS, "--layout", "bsh"], ["--layout", "bhsd"]),
    "window without comma": ([*INPUTS, "--window", "3"], ["--window", "LEFT,RIGHT"]),
    "window without sides": ([*INPUTS, "--window", ","], "--window"),
    "window below 0": ([*INPUTS, "--window", "-1,0"], ["--window", "-1"]),
    "chunk of 0": ([*INPUTS, "--chunk", "0"], ["--chunk", "1 or more"]),
    "causal alignment": ([*INPUTS, "--causal=left"], ["--causal", "left", "top-left"]),
    "scale is text": ([*INPUTS, "--scale", "1x"], ["--scale", "1x"]),
    "scale is nan": ([*INPUTS, "--scale", "nan"], ["--scale", "nan"]),
    "scale too large": ([*INPUTS, "--scale", "1e60"], ["--scale", "1e60"]),
    "softcap below 0": ([*INPUTS, "--softcap", "-1"], ["--softcap", "-1"]),
    "softcap of 0": ([*INPUTS, "--softcap", "0"], ["--softcap"]),
    "softcap of infinity": ([*INPUTS, "--softcap", "inf"], ["--softcap", "leave the flag out"]),
    "dropout without a seed": ([*INPUTS, "--dropout", "0.1"], ["--dropout", "SEED"]),
    "dropout of 1": ([*INPUTS, "--dropout", "1,2,3"], ["--dropout", "P is '1'", "below 1"]),
    "dropout of 0": ([*INPUTS, "--dropout", "0,1,1"], ["--dropout", "P is '0'", "leave the flag"]),
    "dropout seed below 0": ([*INPUTS, "--dropout", "0.5,-1,1"], ["--dropout", "SEED '-1'"]),
    "dropout offset is text": ([*INPUTS, "--dropout", "0.5,1,x"], ["--dropout", "OFFSET 'x'"]),
    "dtype": ([*INPUTS, "--dtype", "fp31"], ["--dtype", "fp31", "bf16"]),
    "integers as dtype": ([*INPUTS, "--dtype", "int32"], ["--dtype", "int32"]),
    "e5m2 as dtype": ([*INPUTS, "--dtype", "fp8_e5m2"], ["--dtype", "fp8_e5m2", "fp8_e4m3"]),
    "float64 without dtype": (["--q", "double.npy", "--k", "k.npy", "--v", "v.npy"],
                              ["--q", "fp64", "--dtype"]),
    "complex": (["--q", "complex.npy", "--k", "k.npy", "--v", "v.npy"], ["--q", "descr"]),
    "text": (["--q", "text.npy", "--k", "k.npy", "--v", "v.npy"], ["--q", "descr"]),
    "integers for q": (["--q", "ints.npy", "--k", "k.npy", "--v", "v.npy"], "--q"),
    "head_dim differs": (["--q", "wide.npy", "--k", "k.npy", "--v", "v.npy"], "head_dim"),
    "heads do not divide": (["--q", "q.npy", "--k", "heads3.npy", "--v", "heads3.npy"],
                            "num_heads"),
    "k and v differ": (["--q", "q.npy", "--k", "k.npy", "--v", "three.npy"], "v"),
    "ragged without cu_seqlens": (["--q", "ragged.npy", "--k", "k.npy", "--v", "v.npy"],
                                  ["--q", "--cu-seqlens-q"]),
    "cu_seqlens for a dense q": ([*INPUTS, "--cu-seqlens-q", "sums.npy"], "--cu-seqlens-q"),
    "cu_seqlens fall": (["--q", "ragged.npy", "--k", "ragged.npy", "--v", "ragged.npy",
                         "--cu-seqlens-q", "falling.npy", "--cu-seqlens-k", "falling.npy"],
                        ["--cu-seqlens-q", "decrease"]),
    "beyond int32": (["--q", "ragged.npy", "--k", "ragged.npy", "--v", "ragged.npy",
                      "--cu-seqlens-q", "far.npy", "--cu-seqlens-k", "far.npy"],
                     ["--cu-seqlens-q", "int32"]),
    "bytes for a mask": ([*INPUTS, "--mask", "mask8.npy"], ["--mask", "boolean"]),
    "bias of another shape": ([*INPUTS, "--bias", "q.npy"], "bias"),
    "document ids of one side": ([*INPUTS, "--document-q", "ints.npy"], "--document-k"),
    "page table without lengths": ([*INPUTS, "--page-table", "ints.npy"], "--seqused-k"),
    "expression with an error": ([*INPUTS, "--score-mod", "score +"], "--score-mod"),
    "expression with an unknown name": ([*INPUTS, "--mask-mod", "k < length"],
                                        ["--mask-mod", "length"]),
    "expression with a control byte": ([*INPUTS, "--score-mod", "score\x1b"], ["x1b", "remove"]),
    "scalar beyond fp32": ([*INPUTS, "--score-mod", "score * x", "--scalar", "x=-1e39"],
                           ["--scalar", "-1e39", "write inf"]),
    "empty expression": ([*INPUTS, "--mask-mod", ""], "--mask-mod"),
    "tensor nobody reads": ([*INPUTS, "--tensor", "a=ints.npy"], "--tensor"),
    "scalar nobody reads": ([*INPUTS, "--scalar", "a=1"], "--scalar"),
    "tensor without a file": ([*INPUTS, "--score-mod", "score", "--tensor", "a"], "NAME=F"),
    "gradient without dout": ([*INPUTS, "--dq", "dq.npy"], ["--dq", "--dout"]),
    "dout of another shape": ([*INPUTS, "--dout", "wide.npy"], "dout"),
    "dbias without a bias": ([*INPUTS, "--dout", "dout.npy", "--dbias", "b.npy"],
                             ["--dbias: ", "--bias F"]),
    "dsink without a sink": ([*INPUTS, "--dout", "dout.npy", "--dsink", "b.npy"],
                             ["--dsink: ", "--sink F"]),
    "backward of fp8": ([*INPUTS, "--dout", "dout.npy", "--dq", "b.npy", "--dtype", "fp8_e4m3"],
                        ["--dout: ", "fp8_e4m3", "--dtype bf16"]),
    "backward of pages": (["--q", "one.npy", "--k", "k.npy", "--v", "v.npy", "--dout", "one.npy",
                           "--page-table", "table.npy", "--seqused-k", "used.npy"],
                          ["--dout: ", "--page-table"]),
    "gradient of integers": ([*INPUTS, "--dout", "dout.npy", "--score-mod", "score * t[q]",
                              "--tensor", "t=ints.npy", "--dtensor", "t=b.npy"],
                             ["--dtensor: ", "'t' is int32", "float32"]),
    "a word after two dashes": ([*INPUTS, "--", "x"], ["'x' is not expected"]),
    "dtensor of no tensor": ([*INPUTS, "--dout", "dout.npy", "--dtensor", "a=b.npy"],
                             ["--dtensor", "a"]),
    "backend": ([*INPUTS, "--backend", "gpu"], ["--backend", "gpu"]),
    "cuda": ([*INPUTS, "--backend", "cuda"], ["--backend", "cuda"]),
    "no threads": ([*INPUTS, "--threads", "0"], "--threads"),
    "isa": ([*INPUTS, "--isa", "sse"], ["--isa", "sse"]),
    "isa of the reference": ([*INPUTS, "--isa", "scalar", "--backend", "reference"],
                             ["--isa", "no effect"]),
    "threads of the reference": ([*INPUTS, "--threads", "3", "--backend", "reference"],
                                 ["--threads", "no effect"]),
    "a switch given twice": ([*INPUTS, "--check", "--check"], ["--check", "once"]),
    "causal given twice": ([*INPUTS, "--causal", "--causal=top-left"], ["--causal", "once"]),
    "a switch with a value": ([*INPUTS, "--check=1"], ["--check", "no value"]),
    "causal without its value": ([*INPUTS, "--causal="], ["--causal=", "leave the '=' out"]),
    "a flag without its value": ([*INPUTS, "--softcap=", "3"], "--softcap="),
    "empty backend": ([*INPUTS, "--backend", ""], ["--backend", "empty"]),
    "output is an input": ([*INPUTS, "--lse", "./q.npy"], ["--lse", "q.npy"]),
    "two outputs in one .npy": ([*INPUTS, "--lse", "out.npy"], ["--lse", "out.npy"]),
    "two outputs in one new .npy": ([*INPUTS, "--lse", "new.npy", "--max-logit", "./new.npy"],
                                    ["--max-logit", "new.npy", "--lse"]),
    "two spellings of a name": ([*INPUTS, "--lse", "./r.safetensors:x", "--max-logit",
                                 "r.safetensors:x"], "--max-logit"),
    "two outputs of one name": ([*INPUTS, "--lse", "r.safetensors:x", "--max-logit",
                                 "r.safetensors:x"], "--max-logit"),
    "a name that is not a tensor's": ([*INPUTS, "--lse", "r.safetensors:__metadata__"], "--lse"),
    "no such folder": ([*INPUTS, "--lse", "none/lse.npy"], ["--lse", "none"]),
    "output of an unknown kind": ([*INPUTS, "--lse", "lse.txt"], ["--lse", "lse.txt"]),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused(files, name):
    flags, says = CASES[name]
    files.refused("attend", *flags, *OUT, says=says)


def test_a_flag_without_a_value(files):
    files.refused("attend", *INPUTS, "--scale", says="--scale")


def test_output_that_is_a_link_to_an_input(files):
    os.link(files.folder / "q.npy", files.folder / "hard.npy")
    os.symlink("q.npy", files.folder / "soft.npy")
    files.refused("attend", *INPUTS, "-o", "hard.npy", says="-o")
    files.refused("attend", *INPUTS, "-o", "soft.npy", says="-o")


def test_a_link_is_followed_and_permissions_stay(files):
    target = files.folder / "target.npy"
    target.write_bytes(b"old")
    target.chmod(0o640)
    os.symlink("target.npy", files.folder / "link.npy")
    files.ok("attend", *INPUTS, "-o", "link.npy")
    assert (files.folder / "link.npy").is_symlink()
    assert np.load(target).shape == (1, 4, 2, 8) and target.stat().st_mode & 0o777 == 0o640


def test_outputs_appear_together_or_not_at_all(files):
    (files.folder / "lse.npy").mkdir()
    files.refused("attend", *INPUTS, *OUT, "--lse", "lse.npy", says=["--lse", "regular"])


def test_a_full_disk_leaves_the_old_file(files):
    """A limit on file sizes stands in for a full disk: writing fails half way."""
    before = (files.folder / "out.npy").read_bytes()
    process = subprocess.run(
        ["bash", "-c", f"ulimit -f 0; exec {binary()} attend {' '.join(INPUTS)} -o out.npy"],
        cwd=files.folder, capture_output=True, text=True)
    assert process.returncode == 2 and process.stdout == "", process
    assert process.stderr.startswith("sirdar: -o: out.npy: cannot be written")
    assert (files.folder / "out.npy").read_bytes() == before
    assert not list(files.folder.glob(".sirdar*"))


def test_standard_output_that_cannot_be_written(files):
    with open("/dev/full", "w") as full:
        for arguments in (["attend", *INPUTS, "-o", "new.npy", "--lse", "out.npy"],
                          ["explain", "fwd s64", "--svg", "new.svg"]):
            before = snapshot(files.folder)
            process = subprocess.run([binary(), *arguments], cwd=files.folder, stdout=full,
                                     stderr=subprocess.PIPE, text=True)
            assert process.returncode == 2 and "standard output" in process.stderr
            assert len(process.stderr.splitlines()) == 1, process.stderr
            assert snapshot(files.folder) == before, "nobody was told of these files"


def test_spellings_of_one_new_file(files):
    """Names that lead to one place which does not exist yet are one file."""
    (files.folder / "sub").mkdir()
    here = files.folder
    for a, b in [("new.npy", "./new.npy"), ("new.npy", here / "new.npy"),
                 ("sub/../new.npy", "new.npy"), ("sub/new.npy", here / "sub/./new.npy")]:
        files.refused("attend", *INPUTS, "-o", a, "--lse", b, says=["--lse", "-o"])
        files.refused("attend", *INPUTS, "-o", b, "--lse", a, says=["--lse", "-o"])
    files.ok("attend", *INPUTS, "-o", "r.safetensors:out", "--lse", here / "r.safetensors:lse",
             "--max-logit", "sub/../r.safetensors:max")
    assert set(load_raw_safetensors(here / "r.safetensors")) == {"out", "lse", "max"}


def test_both_passes_are_checked_before_one_runs(files):
    """The forward pass of this problem takes minutes; a bad input of the backward pass is known."""
    long = np.zeros((1, 1 << 16, 1, 8), np.float32)
    files.save(q=long, k=long, v=long, dout=long[..., :5])
    for backend in ("auto", "reference"):
        files.refused("attend", *INPUTS, *OUT, "--backend", backend, "--dout", "dout.npy", "--dq",
                      "dq.npy", says=["--dout", "head_dim_v"])


def test_no_notice_precedes_an_error(files):
    """What would be said of a computation is not said of one that does not begin."""
    result = files("attend", *INPUTS, "--score-mod", "score", "--dout", "wide.npy", "--dq", "dq.npy")
    assert result.code == 2 and len(result.err.splitlines()) == 1, result.err


def attend_q(files, says):
    files.refused("attend", "--q", "bad.npy", "--k", "k.npy", "--v", "v.npy", *OUT,
                  says=["--q", "bad.npy", *says])


@pytest.mark.parametrize("length", range(0, 190, 3))
def test_a_truncated_npy_file(files, length):
    np.save(files.folder / "small.npy", np.zeros((1, 2, 1, 8), np.float32))
    whole = (files.folder / "small.npy").read_bytes()
    assert len(whole) == 192
    (files.folder / "bad.npy").write_bytes(whole[:length])
    attend_q(files, [])


def npy(header, data=b"", version=(1, 0), length=None):
    text = header.encode()
    size = len(text) if length is None else length
    prefix = b"\x93NUMPY" + bytes(version)
    return prefix + (struct.pack("<H", size) if version[0] == 1 else struct.pack("<I", size)) + text + data


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1), }\n"
BAD_NPY = {
    "trailing bytes": (npy(GOOD, b"12345"), "5"),
    "another magic": (b"\x93NUMPX" + npy(GOOD, b"1234")[6:], "numpy.save"),
    "version 4": (npy(GOOD, b"1234", (4, 0)), "4.0"),
    "header of 4 GiB": (npy(GOOD, b"1234", (2, 0), 0xFFFFFFFF), "4294967295"),
    "negative size": (npy(GOOD.replace("(1, 1", "(-1, 1")), "negative"),
    "size beyond 64 bits": (npy(GOOD.replace("(1, 1", "(99999999999999999999, 1")), "64 bits"),
    "product beyond 64 bits": (npy(GOOD.replace("(1, 1", "(4294967296, 4294967296")), "64 bits"),
    "zero hides a huge axis": (npy(GOOD.replace("(1, 1, 1", "(0, 4611686018427387904, 4")), "64 bits"),
    "five axes": (npy(GOOD.replace("(1, 1", "(1, 1, 1")), "4 are allowed"),
    "pickled objects": (npy(GOOD.replace("<f4", "|O"), b"1234"), "|O"),
    "records": (npy(GOOD.replace("'<f4'", "[('a', '<f4')]"), b"1234"), "fields"),
    "unknown key": (npy(GOOD.replace("}", "'x': 1}")), "'x'"),
    "key twice": (npy(GOOD.replace("}", "'shape': (1,)}")), "shape"),
    "no shape": (npy("{'descr': '<f4', 'fortran_order': False}"), "shape"),
    "code for a value": (npy(GOOD.replace("False", "exit()")), "True or False"),
    "a word for a size": (npy(GOOD.replace("(1, 1", "(1, x")), "write it with numpy.save"),
    "never closed": (npy(GOOD.replace("}", "")), "its end"),
    "control bytes": (npy("{'\x01\x02': 1}"), "\\x01"),
}


@pytest.mark.parametrize("name", BAD_NPY)
def test_a_hostile_npy_file(files, name):
    content, says = BAD_NPY[name]
    (files.folder / "bad.npy").write_bytes(content)
    attend_q(files, [says])


def st(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(begin=0, end=4, dtype="F32", shape=(1, 1, 1, 1)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


BAD_SAFETENSORS = {
    "header longer than the file": (st({"q": entry()}, b"1234", 10 ** 6), "1000000"),
    "header of 2^63 bytes": (st({"q": entry()}, b"1234", 2 ** 63), str(2 ** 63)),
    "not JSON": (st(b"{q}"), ["JSON", "write the file"]),
    "not an object": (st(b"[1]"), "'{'"),
    "deep nesting": (st(b'{"q":' + b"[" * 100000), "list"),
    "nested objects": (st(b'{"q":' * 10000), "only dtype"),
    "name twice": (st(b'{"q":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"q":'
                      b'{"dtype":"F32","shape":[],"data_offsets":[0,4]}}', b"1234"), "twice"),
    "no such tensor": (st({"k": entry()}, b"1234"), ["no tensor", "'k'"]),
    "offsets beyond the file": (st({"q": entry(0, 8, shape=(1, 1, 1, 2))}, b"1234"), "8"),
    "offsets reversed": (st({"q": entry(4, 0)}, b"1234"), "data_offsets"),
    "offsets overlap": (st({"q": entry(), "k": entry(2, 6)}, b"123456"), "overlap"),
    "a gap": (st({"q": entry(2, 6)}, b"123456"), "gap"),
    "trailing bytes": (st({"q": entry()}, b"12345"), "after its last tensor"),
    "size and offsets differ": (st({"q": entry(shape=(1, 1, 1, 2))}, b"1234"), "[1, 1, 1, 2]"),
    "product beyond 64 bits": (st({"q": entry(shape=(2 ** 40, 2 ** 40, 1, 1))}, b"1234"), "2^63"),
    "negative size": (st({"q": entry(shape=(-1, 1, 1, 1))}, b"1234"), "negative"),
    "fraction for a size": (st({"q": entry(shape=(1.5, 1, 1, 1))}, b"1234"), "1.5"),
    "three offsets": (st({"q": dict(entry(), data_offsets=[0, 2, 4])}, b"1234"), "two"),
    "unknown field": (st({"q": dict(entry(), x=1)}, b"1234"), "'x'"),
    "no dtype": (st({"q": {"shape": [1], "data_offsets": [0, 4]}}, b"1234"), "dtype"),
    "unknown dtype": (st({"q": entry(dtype="F128")}, b"1234"), "F128"),
    "five axes": (st({"q": entry(shape=(1, 1, 1, 1, 1))}, b"1234"), "5 axes"),
    "metadata of numbers": (st({"__metadata__": {"a": 1}, "q": entry()}, b"1234"), "__metadata__"),
}


@pytest.mark.parametrize("name", BAD_SAFETENSORS)
def test_a_hostile_safetensors_file(files, name):
    content, says = BAD_SAFETENSORS[name]
    (files.folder / "bad.safetensors").write_bytes(content)
    files.refused("attend", "--q", "bad.safetensors:q", "--k", "k.npy", "--v", "v.npy", *OUT,
                  says=["--q", "bad.safetensors", *([says] if isinstance(says, str) else says)])


def test_a_truncated_safetensors_file(files):
    path = files.folder / "bad.safetensors"
    save_raw_safetensors(path, {"q": ("F32", (1, 1, 1, 4), bytes(16))})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        files.refused("attend", "--q", "bad.safetensors:q", "--k", "k.npy", "--v", "v.npy", *OUT,
                      says=["--q", "bad.safetensors"])
