"""Runs flash-attn's own tests, as they are, against the modules of sirdar.compat.

usage: PYTHONPATH=python python3 tests/device/flash_attn_tests.py CHECKOUT [FILE...] [--device cpu]
           [--sample N] [--seed S] [--longest L] [--seconds T] [--part I/N] [-- pytest's arguments]

CHECKOUT: a checkout of github.com/Dao-AILab/flash-attention, or its unpacked source distribution. FILE:
tests/test_flash_attn.py and hopper/test_flash_attn.py unless others are named. Their parameters make
hundreds of thousands of cases: N of each test are drawn at random (0: all run). L leaves out what has a
larger number among its parameters. After T seconds no further case of a file begins. I/N: every Nth case from the
Ith, 1 to N, for N processes side by side. With --device cpu whatever the tests put on "cuda" is put on the CPU,
and torch.cuda answers as a Hopper GPU would. A test that ends in a NotImplementedError of this library is
counted as refused and not as failed; what was refused is printed at the end. A line is printed for every
test when its last case is over, and for every failure at once. Needs pytest and einops.
"""

import argparse
import collections
import itertools
import math
import pathlib
import random
import sys
import time
import types

import sirdar.compat

sirdar.compat.install()

import pytest  # noqa: E402
import torch  # noqa: E402

FILES = ("tests/test_flash_attn.py", "hopper/test_flash_attn.py")


class Sample:
    """pytest plugin: a few cases of every test instead of all, and refusals told from failures."""

    def __init__(self, given):
        self.count, self.longest, self.seconds = given.sample, given.longest, given.seconds
        self.part, self.parts = map(int, given.part.split("/"))
        self.random = random.Random(given.seed)
        self.refused, self.missed = collections.Counter(), collections.Counter()
        self.results = collections.defaultdict(collections.Counter)  # of every test
        self.waiting = collections.Counter()  # cases of every test that are to come
        self.begin = time.perf_counter()

    def pytest_collection_modifyitems(self, items):
        items[:] = items[self.part - 1 :: self.parts]
        self.waiting.update(item.originalname for item in items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        if time.perf_counter() - self.begin < self.seconds:
            return None
        self.missed[item.originalname] += 1
        return True

    def _tell(self, item, report):
        """The result of a case, and of its test after the last."""
        writer = item.config.pluginmanager.get_plugin("terminalreporter")
        name = item.originalname
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = str(crash.message if crash else report.longrepr).splitlines()[0]
            writer.ensure_newline()
            writer.write_line(f"FAILED {item.name}: {said[:300]}")
        self.results[name][report.outcome] += 1
        self.waiting[name] -= 1
        if not self.waiting[name]:
            told = ", ".join(f"{count} {what}" for what, count in self.results[name].items())
            writer.ensure_newline()
            writer.write_line(f"{name} ({time.perf_counter() - self.begin:.0f} s): {told}")
            writer.flush()

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
        if call.when == "call" or (call.when == "setup" and not report.passed):
            self._tell(item, report)

    def pytest_terminal_summary(self, terminalreporter):
        for sentence, count in sorted(self.refused.items()):
            terminalreporter.write_line(f"refused {count} times: {sentence}")
        for name, count in self.missed.items():
            terminalreporter.write_line(f"not begun after {self.seconds:g} s: {count} of {name}")


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
    parser.add_argument("--seconds", type=float, default=math.inf, metavar="T")
    parser.add_argument("--part", default="1/1", metavar="I/N")
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
    plugin = Sample(given)
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
