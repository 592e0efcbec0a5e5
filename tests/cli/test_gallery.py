"""The pictures of the gallery, and what `explain --svg` draws when it is given data."""

import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np

from conftest import ROOT, binary

SVG = "{http://www.w3.org/2000/svg}"


def test_the_pictures_are_current():
    drawn = subprocess.run([sys.executable, ROOT / "tools/draw_gallery.py", binary(), "--check"],
                           capture_output=True, text=True)
    assert drawn.returncode == 0, drawn.stdout + drawn.stderr


def test_every_example_has_a_picture():
    gallery = (ROOT / "docs/expressions.md").read_text(encoding="utf-8").split("## Gallery\n")[1]
    examples = re.findall(r"```\n(\S.*)\n```\n(!?)", gallery)
    assert len(examples) == 13 and all(picture for _, picture in examples)
    for image in re.findall(r"images/\w+\.svg", gallery):
        assert (ROOT / "docs" / image).stat().st_size < 60_000


def cells(sirdar, *arguments):
    sirdar.ok("explain", *arguments, "--svg", "map.svg")
    root = ElementTree.parse(sirdar.folder / "map.svg").getroot()
    text = " ".join("".join(t.itertext()) for t in root.iter(f"{SVG}text"))
    return [int(n) for n in re.findall(r"\((\d+) of \d+ cells\)", text)], text


def test_data_decide(sirdar):
    doc = np.repeat([3, 1, 2], [16, 8, 8]).astype(np.int32)[None]
    sirdar.save(doc=doc, width=np.array([4, 32], np.int32))
    documents = 'fwd s32 h2 mask_mod:"doc[b, q] == doc[b, k]" tensor:doc:int32:2'
    # Tiles of 8: squares of 2 x 2, 1 and 1 are full, and nothing is part.
    assert cells(sirdar, documents, "--tile", "8,8", "--tensor", "doc=doc.npy")[0] == [10, 0, 6]
    windows = 'fwd s32 h2 mask_mod:"q >= k && q - k < width[h]" tensor:width:int32:1'
    given = ["--tile", "8,8", "--tensor", "width=width.npy", "--head"]
    assert cells(sirdar, windows, *given, "0")[0] == [9, 7, 0]
    assert cells(sirdar, windows, *given, "1")[0] == [6, 4, 6]
    assert cells(sirdar, 'fwd s32 mask_mod:"k < n" scalar:n', "--tile", "8,8", "--scalar",
                 "n=16")[0] == [8, 0, 8]


def test_scores_are_shaded(sirdar):
    _, text = cells(sirdar, 'fwd s32 score_mod:"score - 0.5 * abs(q - k)"', "--tile", "8,8")
    assert "a score of 1 becomes -11 (light) to 1 (dark)" in text
    _, text = cells(sirdar, 'fwd s32 score_mod:"score * c" scalar:c', "--tile", "8,8")
    assert "becomes" not in text and "score_mod" in text


def test_what_is_wrong_is_said(sirdar):
    sirdar.save(doc=np.zeros((1, 32), np.int32), ramp=np.zeros(4, np.float32))
    problem = 'fwd s32 h2 mask_mod:"doc[b, q] == doc[b, k]" tensor:doc:int32:2'
    for arguments, words in [
            (["--tile", "8,8"], ["--svg", "not given"]), (["--head", "0"], ["--svg"]),
            (["--svg", "a.svg", "--tile", "8"], ["--tile", "M,N"]),
            (["--svg", "a.svg", "--tile", "0,8"], ["--tile"]),
            (["--svg", "a.svg", "--tile", "8,x"], ["--tile"]),
            (["--svg", "a.svg", "--head", "2"], ["--head"]),
            (["--svg", "a.svg", "--sequence", "1"], ["--sequence"]),
            (["--svg", "a.svg", "--tensor", "dok=doc.npy"], ["--tensor", "dok"]),
            (["--svg", "a.svg", "--tensor", "doc"], ["--tensor"]),
            (["--svg", "a.svg", "--tensor", "doc=none.npy"], ["--tensor", "none.npy"]),
            (["--svg", "a.svg", "--tensor", "doc=ramp.npy"], ["--tensor", "rank 1", "rank 2"]),
            (["--svg", "a.svg", "--scalar", "n=1"], ["--scalar", "'n'"])]:
        sirdar.refused("explain", problem, *arguments, says=words)
