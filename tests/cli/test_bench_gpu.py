"""`sirdar bench --backend cuda`, beside a driver that does nothing."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).resolve().parent
PROBLEM = "fwd b1 s256 h2 d64 bf16 causal"
QUICK = ("--min-time", "0", "--max-time", "1")


@pytest.fixture
def gpu(sirdar):
    """Runs the command where such a driver is found."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("NOT TESTED: no C compiler here")
    subprocess.run([compiler, "-O0", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1",
                    str(HERE / "nothing_driver.c"), "-o", "libcuda.so.1"], cwd=sirdar.folder, check=True)
    path = f"{sirdar.folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    env = {"LD_LIBRARY_PATH": path, "SIRDAR_CACHE_DIR": str(sirdar.folder / "cache")}

    def run(*arguments, code=0):
        result = sirdar("bench", *arguments, env=env)
        if "nvrtc" in result.err:
            pytest.skip("NOT TESTED: no NVRTC here; ./dev setup installs it and ./dev test finds it")
        assert result.code == code, (arguments, result.out, result.err)
        return result

    return run


def test_a_line_has_what_a_line_of_a_cpu_has_and_the_hosts_time(gpu):
    row = json.loads(gpu(PROBLEM, "--backend", "cuda", "--json", *QUICK).out)
    assert row["problem"].startswith("fwd b1") and row["device"] == "NVIDIA H200"
    assert row["implementation"] == "cuda.sm90.forward" and "block_n=" in row["config"]
    assert row["median_ms"] == row["least_ms"] == 0.25 and row["spread"] == 0
    assert row["repetitions"] == 30
    flops = 4 * 2 * 64 * (256 * 257 // 2)  # 2 heads; a multiply and an add for scores and for values
    assert row["tflops"] == pytest.approx(flops / 0.25e-3 * 1e-12)
    bytes_moved = 4 * 2 * 256 * 64 * 2  # q, k, v, out of 2 heads
    assert row["gbytes_per_s"] == pytest.approx(bytes_moved / 0.25e-3 * 1e-9)
    least = max(flops / 989.4e12, bytes_moved / 4.8e12)
    assert row["roofline_percent"] == pytest.approx(100 * least / 0.25e-3)
    assert row["peak_tflops"] == pytest.approx(989.4)
    assert 0 < row["host_us"] < 1000 and row["jit_ms"] > 0
    assert "threads" not in row and "isa" not in row
    # From the disk cache it takes no compiler's time.
    again = json.loads(gpu(PROBLEM, "--backend", "cuda.sm90.forward", "--json", *QUICK).out)
    assert again["jit_ms"] < row["jit_ms"] / 3


def test_hidden_pairs_are_no_work(gpu):
    row = json.loads(gpu("fwd b1 s256 h2 d64 bf16 document", "--backend", "cuda", "--json", *QUICK).out)
    assert row["is_exact"] and row["tflops"] * 0.25e9 < 0.7 * 4 * 2 * 64 * 256 * 256
    row = json.loads(gpu('fwd b1 s9000 h1 d64 bf16 mask_mod:"(q*7+k*3)%5<2"', "--backend", "cuda",
                         "--json", *QUICK).out)
    assert row["is_exact"] is False and row["roofline_percent"] is row["tflops"] is None


def test_the_table_and_a_backward_problem(gpu):
    out = gpu("bwd b1 s64 h1 d64 bf16", "--backend", "cuda", *QUICK).out
    assert "cuda.sm90.backward" in out and "us of the host a call" in out and "kernels ready in" in out


def test_what_has_no_meaning_on_a_gpu_is_refused(sirdar):
    for flag, value in (("--threads", "2"), ("--isa", "avx2"), ("--pages", "huge"), ("--against", "naive")):
        sirdar.refused("bench", PROBLEM, "--backend", "cuda", flag, value, says=flag)


def test_without_a_gpu_it_says_so(sirdar):
    if "gpu          none" not in sirdar.ok("doctor").out:
        pytest.skip("there is a GPU here")
    sirdar.refused("bench", PROBLEM, "--backend", "cuda", says="driver: ")
    sirdar.refused("selftest", "--backend", "cuda", says="nothing was checked")
