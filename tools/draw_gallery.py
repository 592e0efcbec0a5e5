"""Draws the pictures of the gallery in docs/expressions.md.

usage: draw_gallery.py SIRDAR [--check]

Every image of the gallery follows the text that it shows. SIRDAR is the program that draws them
(`sirdar explain --svg`). With --check nothing is written, and the exit code is 1 if a picture differs.
"""

import pathlib
import re
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENTRY = re.compile(r"```\n(\S.*)\n```\n((?:!\[[^\]]*\]\(images/expression_\w+\.svg\)\n)+)")
IMAGE = re.compile(r"images/(expression_\w+\.svg)")
HEADS, SEQLEN, TILE = 4, 512, 16
# Length and tile of pictures whose pattern is finer or coarser.
FINE = {"expression_dilated.svg": (32, 1), "expression_alibi.svg": (512, 32)}

DOCUMENTS = [96, 200, 120, 96]
# What the texts read: dtype for struct, shape, values.
TENSORS = {
    "doc": ("i", (1, SEQLEN), [n for n, length in enumerate(DOCUMENTS) for _ in range(length)]),
    "prefix": ("i", (1,), [160]),
    "width": ("i", (HEADS,), [32, 64, 128, 256]),
    "keep": ("?", (HEADS, 8, 8), [(5 * q + 3 * k + h) % 7 < 2 for h in range(HEADS) for q in range(8) for k in range(8)]),
    "slope": ("f", (HEADS,), [0.25, 0.0625, 0.015625, 0.00390625]),
    "table": ("f", (HEADS, 257), [8 / (8 + abs(n - 128)) - h for h in range(HEADS) for n in range(257)]),
    "log_gain": ("f", (HEADS,), [0.5, 0.0, -0.5, -1.0]),
}
SCALARS = {"cap": 1.5}
DESCRIPTIONS = {"i": "<i4", "f": "<f4", "?": "|b1"}


def npy(kind, shape, values):
    header = f"{{'descr': '{DESCRIPTIONS[kind]}', 'fortran_order': False, 'shape': {shape}, }}"
    header = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack(
        f"<{len(values)}{kind}", *values)


def command(sirdar, text, image, folder):
    """The command that draws `image` of `text` into `folder`."""
    seqlen, tile = FINE.get(image, (SEQLEN, TILE))
    head = re.search(r"_head(\d+)\.svg", image)
    text = text.removeprefix("bwd ").replace(":grad", "")
    words = [sirdar, "explain", f"fwd s{seqlen} h{HEADS} d64 {text}", "--svg", folder / image,
             "--tile", f"{tile},{tile}", "--head", head[1] if head else "1"]
    for name in re.findall(r"tensor:(\w+):", text):
        path = folder / f"{name}.npy"
        path.write_bytes(npy(*TENSORS[name]))
        words += ["--tensor", f"{name}={path}"]
    for name in re.findall(r"scalar:(\w+)", text):
        words += ["--scalar", f"{name}={SCALARS[name]}"]
    return words


def pictures(sirdar):
    """Yields (name, SVG) for each image of the gallery."""
    document = (ROOT / "docs/expressions.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for text, images in ENTRY.findall(document):
            for image in IMAGE.findall(images):
                path = pathlib.Path(folder)
                subprocess.run(command(sirdar, text, image, path), check=True, stdout=subprocess.DEVNULL)
                yield image, (path / image).read_text(encoding="utf-8")


def main(arguments):
    if not arguments or arguments[1:] not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    check = len(arguments) == 2
    stale = []
    for image, svg in pictures(pathlib.Path(arguments[0]).resolve()):
        path = ROOT / "docs/images" / image
        if path.exists() and path.read_text(encoding="utf-8") == svg:
            continue
        stale.append(image)
        if not check:
            path.write_text(svg, encoding="utf-8")
    if stale and check:
        print(f"docs/images: out of date: {', '.join(stale)}; tools/draw_gallery.py SIRDAR draws them.")
        return 1
    print(f"docs/images: {'drew ' + ', '.join(stale) if stale else 'every picture is current'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
