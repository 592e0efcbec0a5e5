"""Checks that every #include follows the layers of docs/design.

usage: check_layers.py [ROOT]

A folder may include itself, the public headers and the folders its row names. Public headers include
only public headers. Exit code 1 and one line per violation, with what the including folder may use.
"""

import pathlib
import re
import sys

# folder of src/ (or another tree) -> folders of src/ it may include, besides itself
LAYERS = {
    "shared": set(),
    "expression": {"shared"},
    "core": {"shared", "expression"},  # validation parses the expressions it is given
    "plan": {"shared", "expression", "core"},
    "reference": {"shared", "expression", "core", "plan"},
    "cpu": {"shared", "expression", "core", "plan"},
    "jit": {"shared", "expression", "core", "plan"},
    "cuda": {"shared", "expression", "core", "plan", "jit"},
    "emulator": {"shared"},  # for tests only; no part of the library
    "check": {"shared", "expression", "core", "plan", "reference", "cuda"},
    "io": set(),  # files <-> TensorView: the public headers are enough
    "api": {"shared", "expression", "core", "plan", "reference", "cpu", "jit", "cuda"},
}
# Files that tie layers together by their nature: the registry names every implementation.
EXCEPTIONS = {
    "src/plan/registry.cc": {"reference", "cpu", "cuda"},
    "src/expression/parse.cc": {"core"},  # core/suggest.h, which depends on nothing
}
SUFFIXES = {".h", ".hpp", ".cc", ".inl"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def folder_of(include):
    """The folder of src/ that an include path names, or None for a file of its own folder."""
    return include.split("/")[0] if "/" in include else None


def violations_of(root, path):
    name = path.relative_to(root).as_posix()
    text = path.read_text(encoding="utf-8")
    for match in INCLUDE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        include = match.group(2)
        problem = judge(name, include)
        if problem:
            yield f"{name}:{line}: includes {include}; {problem}"


def judge(name, include):
    """Why a file may not include what it does, or None."""
    target = folder_of(include)
    if name.startswith("include/"):
        if target in LAYERS:
            return "a public header may include only <sirdar/...> and the standard library."
        return None
    if target not in LAYERS:
        return None  # public headers, system libraries, the folder's own files
    if name.startswith("src/"):
        folder = name.split("/")[1]
        if folder not in LAYERS:
            return f"src/{folder} has no row in tools/check_layers.py; add one and say why it sits there."
        allowed = LAYERS[folder] | {folder} | EXCEPTIONS.get(name, set())
        if target not in allowed:
            return f"src/{folder} may include only {', '.join(sorted(allowed))}."
    return None


def main(arguments):
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent).resolve()
    files = [p for tree in ("include", "src") for p in sorted((root / tree).rglob("*"))
             if p.suffix in SUFFIXES]
    if not files:
        print(f"check_layers: no source files below {root}", file=sys.stderr)
        return 2
    problems = [problem for path in files for problem in violations_of(root, path)]
    print("\n".join(problems) if problems else f"layers: {len(files)} files follow the diagram")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
