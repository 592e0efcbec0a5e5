"""Importing the package: fast, alone, and never failing."""

import os
import pathlib
import subprocess
import sys

import pytest

import sirdar

FOLDER = pathlib.Path(sirdar.__file__).resolve().parents[1]


def run(code, **environment):
    """What a fresh Python prints."""
    process = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n{code}"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.split()


def test_it_brings_no_framework_and_loads_no_library():
    code = "import sirdar; print(*(n for n in ('numpy', 'torch', 'jax', 'cupy') if n in sys.modules), sep=' ')"
    assert run(code) == []
    assert run("import sirdar; from sirdar import _abi; print(_abi._library)") == ["None"]


def test_it_takes_less_than_a_fifth_of_a_second():
    code = "import time; t = time.process_time(); import sirdar; print(time.process_time() - t)"
    assert min(float(run(code)[0]) for _ in range(3)) < 0.2


def test_without_the_library_a_call_says_what_to_do():
    code = (
        "import sirdar; from sirdar import _abi\n"
        "_abi.candidates = lambda: iter(['libnowhere.so'])\n"
        "try: sirdar.plan('fwd s8')\n"
        "except RuntimeError as error: print('install a wheel' in str(error))"
    )
    assert run(code) == ["True"]


def test_a_gpu_that_is_not_there_is_an_error_with_a_sentence():
    code = (
        "import sirdar\n"
        "try: print(sirdar.plan('fwd s8 bf16', device='cuda').device)\n"
        "except (RuntimeError, ValueError, NotImplementedError) as error: print('cuda:0' if str(error) else '')"
    )
    assert run(code, CUDA_VISIBLE_DEVICES="")[0].startswith("cuda")


def test_doctor_and_selftest():
    text = sirdar.doctor()
    assert "cpu.forward" in text and "\n" in text
    report = sirdar.selftest()
    assert report.ok and len(report.outcomes) >= 20, str(report)
    assert str(report).endswith("s")


def test_selftest_without_numpy_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ImportError, match="NumPy, which is not installed; pip install numpy"):
        sirdar.selftest()


def test_the_version_is_the_library_s():
    from sirdar import _abi

    assert sirdar.__version__ == _abi.library().sirdar_version().decode()
