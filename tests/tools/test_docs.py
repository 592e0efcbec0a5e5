import re

import pytest

from conftest import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/**/*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def links(text):
    without_code = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    return [link for link in LINK.findall(without_code) if "://" not in link]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_somewhere(document):
    dead = [
        link for link in links(document.read_text(encoding="utf-8"))
        if not (document.parent / link).exists()
    ]
    assert not dead


def test_a_dead_link_would_be_seen():
    assert links("[a](missing.md) and [b](start.md#top) but not `[c](d)`") == ["missing.md", "start.md"]


def test_the_readme_begins_with_its_two_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = readme.split("```sh\n")[1].split("```")[0]
    assert [line.split("#")[0].strip() for line in block.splitlines()] == ["./dev demo", "./dev test"]


def test_the_readme_shows_the_example_programs_as_they_are_compiled():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("attention.cpp", "attention.c", "attention.py", "attend.sh"):
        assert (ROOT / "examples" / name).read_text(encoding="utf-8") in readme, f"{name}: ./dev docs"


def test_the_developer_script_stays_small():
    assert len((ROOT / "dev").read_text(encoding="utf-8").splitlines()) <= 250


def test_code_of_start_md_is_code_that_is_compiled():
    text = (ROOT / "docs/start.md").read_text(encoding="utf-8")
    for language, example in (("cpp", "knobs.cpp"), ("c", "knobs.c")):
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        assert len(blocks) == 1
        assert blocks[0] in (ROOT / "examples" / example).read_text(encoding="utf-8")
