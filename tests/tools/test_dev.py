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


@pytest.mark.parametrize("what", ["pack", "run"])
def test_gpu_says_that_there_is_nothing_to_pack_or_run(dev, what):
    code, out, err = dev("gpu", what)
    assert (code, out) == (2, "")
    assert "no GPU kernel" in err
