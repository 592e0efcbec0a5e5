"""docs/python.md: what its sessions print is what happens."""

import doctest
import inspect
import pathlib

import pytest
import sirdar

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["python.md"])
def test_the_sessions_of_a_document(name):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    assert len(test.examples) > 20
    report = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_every_public_function_says_what_it_takes_and_gives():
    for name in sirdar.__all__:
        value = getattr(sirdar, name)
        assert inspect.getdoc(value), name
        document = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
        assert name in document, name


def test_every_argument_of_attention_is_explained():
    text = inspect.getdoc(sirdar.attention)
    for name in inspect.signature(sirdar.attention).parameters:
        assert name in text, name
