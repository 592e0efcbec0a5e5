import shutil
import subprocess

import pytest

from conftest import ROOT


@pytest.fixture
def dev(tmp_path):
    """Runs a copy of ./dev in a folder with spaces, from elsewhere, with an almost empty environment."""
    folder = tmp_path / "a folder with spaces"
    folder.mkdir()
    shutil.copy(ROOT / "dev", folder)

    def run(*arguments):
        done = subprocess.run(
            [folder / "dev", *arguments],
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def test_help_lists_every_verb_that_the_script_knows(dev):
    code, out, _ = dev("help")
    assert code == 0
    for verb in "setup build demo test bench lint fuzz coverage wheel docs ci gpu".split():
        assert f"\n  {verb}" in out, verb


def test_an_unknown_verb_is_one_sentence_and_exit_code_2(dev):
    code, out, err = dev("climb")
    assert (code, out) == (2, "")
    assert err == "./dev: 'climb' is not a verb; ./dev help lists them.\n"


@pytest.mark.parametrize("words", [[], ["unpack"]])
def test_gpu_packs_or_runs_and_nothing_else(dev, words):
    code, out, err = dev("gpu", *words)
    assert (code, out) == (2, "")
    assert err == f"./dev: gpu: '{' '.join(words)}' is neither pack nor run.\n"


def test_a_pack_for_a_gpu_machine_is_complete_and_says_what_failed(tmp_path):
    for name in ("tools", "bench", "tests/device", "python/sirdar"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    release = tmp_path / "build" / "release"
    (release / "tests").mkdir(parents=True)
    for name in ("sirdar", "libsirdar.so", "tests/compare_with_emulator"):
        shutil.copy("/bin/true", release / name)
    pack = tmp_path / "a pack"
    subprocess.run([tmp_path / "tools" / "gpu.sh", "pack", pack], check=True, capture_output=True)
    for name in ("bench/sirdar_ctypes.py", "tests/device/torch_on_gpu.py", "python/sirdar/libsirdar.so"):
        assert (pack / name).is_file(), name
    assert subprocess.run([pack / "run.sh"]).returncode == 0
    shutil.copy("/bin/false", pack / "compare_with_emulator")
    assert subprocess.run([pack / "run.sh"]).returncode == 1
