"""sirdar ladder as a user runs it: counts by formula, one object a line, and refusals."""

import json
import os
import subprocess

import pytest

SIRDAR = os.environ.get("SIRDAR", "build/release/sirdar")


def ladder(*arguments):
    return subprocess.run([SIRDAR, "ladder", *arguments], capture_output=True, text=True, timeout=300)


def test_json_counts_follow_the_formulas():
    n, d, m = 96, 16, 4096
    done = ladder(f"fwd sq{n} sk{n} d{d}", "--fast-memory", str(4 * m), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    rungs = {line["rung"]: line for line in lines if line["kind"] == "rung"}
    checks = [line for line in lines if line["kind"] == "check"]
    assert {rung["system"] for rung in rungs.values()} == {f"S{i}" for i in (*range(1, 10), 11)}
    assert checks and all(check["passes"] for check in checks)
    assert all(rung["max_error"] < 1e-5 for rung in rungs.values())
    assert all(rung["fast_bytes"] <= 4 * m for rung in rungs.values())

    flash1 = rungs["flash1 forward"]
    tiles_n = -(-n // flash1["block_n"])
    assert flash1["read_bytes"] == 4 * (2 * n * d + tiles_n * n * (2 * d + 2))
    assert flash1["written_bytes"] == 4 * (tiles_n + 1) * n * (d + 2)
    flash2 = rungs["flash2 forward"]
    tiles_m = -(-n // flash2["block_m"])
    assert flash2["read_bytes"] == 4 * (n * d + 2 * tiles_m * n * d)
    assert flash2["extra_bytes"] == 4 * n
    assert rungs["standard forward"]["extra_bytes"] == 4 * 2 * n * n


def test_text_shows_rungs_checks_and_the_published_table():
    done = ladder("fwd", "sq64", "sk64", "d8", "--fast-memory", "4096")
    assert (done.returncode, done.stderr) == (0, "")  # no progress outside a terminal
    for text in ("S11  flash2 backward", "12 = 12", "89 = 89", "published 40.3", "4N^2 d"):
        assert text in done.stdout
    assert "FAILED" not in done.stdout


def test_an_odd_scale_is_honoured():
    done = ladder("fwd sq33 sk33 d5 scale:-2.5", "--fast-memory", "2000", "--json")
    assert done.returncode == 0, done.stderr


def test_stages_of_the_gpu_kernel_compile_without_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("SIRDAR_CACHE_DIR", str(tmp_path))
    done = ladder("fwd s64 d16 fp16", "--device", "cuda", "--compile-only", "--json")
    if "nvrtc" in done.stderr:
        pytest.skip("NOT TESTED: no NVRTC here; ./dev setup installs it and ./dev test finds it")
    assert (done.returncode, done.stderr) == (0, "")
    rungs = [json.loads(line) for line in done.stdout.splitlines()]
    assert [rung["is_product"] for rung in rungs].count(True) == 1
    assert not any(rung["is_extra"] for rung in rungs[: [r["is_product"] for r in rungs].index(True) + 1])
    assert len({rung["config"] for rung in rungs}) == len(rungs) >= 8
    assert {"S12", "S14", "S15", "S20", "S21"} <= {rung["system"] for rung in rungs}
    assert all(rung["registers"] > 0 and rung["shared_bytes"] > 0 for rung in rungs)
    assert "tflops" not in rungs[0]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["fwd sq64 sk64 d8", "--device", "cuda"], ["dtype_fp32", "leave the word out"]),
        (["fwd sq64 sk64 d64 bf16 softcap:3", "--device", "cuda"], ["softcap", "causal or not"]),
        (["fwd sq64 sk64 d12 bf16", "--device", "cuda"], ["multiples of 8", "12"]),
        (["--device", "cuda", "--fast-memory", "4096"], ["--fast-memory", "--device cuda"]),
        (["--compile-only"], ["--compile-only", "--device cuda"]),
        (["fwd sq64 sk64 d8", "--device", "tpu"], ["--device tpu", "cpu and cuda"]),
        (["fwd sq64 sk64 d8", "--fast-memory", "64"], ["--fast-memory", "64 bytes", "at least 272"]),
        (["fwd sq64 sk64 d8", "--fast-memory", "-1"], ["--fast-memory", "'-1'"]),
        (["fwd sq64 sk64 d8", "--fast-memory", "many"], ["--fast-memory", "many"]),
        (["fwd sq64 sk32 d8"], ["sq64 sk32", "equal"]),
        (["fwd b2 sq64 sk64 d8"], ["b2", "one head"]),
        (["fwd sq64 sk64 d8 causal"], ["causal", "leave the word out"]),
        (["fwd sq64 sk64 d8 bf16"], ["bf16", "fp32"]),
        (["bwd sq64 sk64 d8"], ["backward", "leave the word out"]),
        (["fwd sq64 sk64 d8", "fwd sq32 sk32 d8"], ["2 problems", "one is allowed"]),
        (["fwd sq100000 sk100000 d8"], ["seqlen_q", "100000", "8192"]),
        (["fwd sq0 sk0 d8"], ["seqlen_q", "0"]),
        (["--fastmemory", "9"], ["--fastmemory", "--fast-memory"]),
        (["nonsense"], ["nonsense"]),
    ],
)
def test_refusals_are_one_sentence_with_what_to_do(arguments, words):
    done = ladder(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr, done.stderr
