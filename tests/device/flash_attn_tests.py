"""Runs flash-attn's own tests, as they are, against the modules of sirdar.compat.

usage: PYTHONPATH=python python3 tests/device/flash_attn_tests.py CHECKOUT [FILE...] [--device cpu]
           [--sample N] [--seed S] [--longest L] [-- pytest's arguments]

CHECKOUT: a checkout of github.com/Dao-AILab/flash-attention, or its unpacked source distribution. FILE:
tests/test_flash_attn.py and hopper/test_flash_attn.py unless others are named. Their parameters make
hundreds of thousands of cases: N of each test are drawn at random (0: all run). L leaves out what has a
larger number among its parameters. With --device cpu whatever the tests put on "cuda" is put on the CPU,
and torch.cuda answers as a Hopper GPU would. A test that ends in a NotImplementedError of this library is
counted as refused and not as failed; what was refused is printed at the end. Needs pytest and einops.
"""

import argparse
import collections
import itertools
import math
import pathlib
import random
import sys
import types

import sirdar.compat

sirdar.compat.install()

import pytest  # noqa: E402
import torch  # noqa: E402

FILES = ("tests/test_flash_attn.py", "hopper/test_flash_attn.py")


class Sample:
    """pytest plugin: a few cases of every test instead of all, and refusals told from failures."""

    def __init__(self, count, seed, longest):
        self.count, self.longest = count, longest
        self.random = random.Random(seed)
        self.refused = collections.Counter()

    def _is_short(self, values):
        numbers = (value for value in values if type(value) is int)
        return not self.longest or max(numbers, default=0) <= self.longest

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc):
        node = metafunc.definition
        marks = [mark for mark in node.own_markers if mark.name == "parametrize"]
        if not marks or not self.count:
            return
        axes = [
            [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
            for names in (mark.args[0] for mark in marks)
        ]
        lists = [
            [tuple(values) if len(names) > 1 else (values,) for values in mark.args[1]]
            for names, mark in zip(axes, marks)
        ]
        node.own_markers[:] = [mark for mark in node.own_markers if mark.name != "parametrize"]
        metafunc.parametrize([name for names in axes for name in names], self._drawn(lists))

    def _drawn(self, lists):
        lists = [[values for values in one if self._is_short(values)] for one in lists]
        if math.prod(map(len, lists)) <= self.count:
            return [tuple(itertools.chain(*values)) for values in itertools.product(*lists)]
        return [
            tuple(itertools.chain.from_iterable(self.random.choice(one) for one in lists))
            for _ in range(self.count)
        ]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        if call.excinfo is not None and call.excinfo.errisinstance(NotImplementedError):
            sentence = str(call.excinfo.value).splitlines()[0]
            self.refused[f"{item.originalname}: {sentence}"] += 1
            report.outcome, report.longrepr = "skipped", (__file__, 0, f"refused: {sentence}")

    def pytest_terminal_summary(self, terminalreporter):
        for sentence, count in sorted(self.refused.items()):
            terminalreporter.write_line(f"refused {count} times: {sentence}")


def moved(value):
    """What names a GPU, naming the CPU."""
    if isinstance(value, str) and value.startswith("cuda"):
        return "cpu"
    return torch.device("cpu") if isinstance(value, torch.device) else value


class OnCpu(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        kwargs = {name: moved(value) for name, value in (kwargs or {}).items()}
        return function(*map(moved, args), **kwargs)


def pretend_a_gpu():
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(
        total_memory=80 << 30, multi_processor_count=132
    )
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
    torch.cuda.manual_seed = torch.cuda.manual_seed_all = lambda seed: None


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--sample", type=int, default=100, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--longest", type=int, default=0, metavar="L")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = parser.parse_args(sys.argv[1:at])
    code = 0
    for name in given.files or FILES:
        file = given.checkout / name
        if not file.is_file():
            parser.error(f"{file}: there is no such file; CHECKOUT must be flash-attn's source.")
        code = max(code, run(given, file, sys.argv[at + 1 :]))
    return code


def run(given, file, more):
    """One file by itself: the tests' helpers beside it, test_util and padding, have one name in all folders."""
    for name in ("test_util", "padding"):
        sys.modules.pop(name, None)
    arguments = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--noconftest"]
    arguments += ["--rootdir", str(file.parent), str(file), *more]
    plugin = Sample(given.sample, given.seed, given.longest)
    sys.path.insert(0, str(file.parent))
    try:
        if given.device == "cuda":
            return pytest.main(arguments, plugins=[plugin])
        pretend_a_gpu()
        with OnCpu():
            return pytest.main(arguments, plugins=[plugin])
    finally:
        sys.path.remove(str(file.parent))


if __name__ == "__main__":
    sys.exit(main())
