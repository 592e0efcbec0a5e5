"""Reports sizes against the project's budgets.

usage: budget.py [ROOT]

The budgets keep the code small enough to read. They are a guide that a reason may override, so going
over is printed and passes; only the size of the shared library fails (exit code 1).
"""

import pathlib
import re
import sys

FILE_LINES = 500
COLUMNS = 100
FUNCTION_LINES = 60
PARAMETERS = 6
TEMPLATE_PARAMETERS = 3
NESTING = 4
MACROS = 6
ENVIRONMENT_VARIABLES = 7
SOURCE_LINES = 20_000  # src/ without reference/
LIBRARY_BYTES = 5 << 20  # enforced

SUFFIXES = {".h", ".hpp", ".cc", ".inl", ".c", ".cpp"}
TREES = ("include", "src", "cli", "tests", "fuzz", "bench", "examples")
NOT_CODE = re.compile(
    r'R"(?P<d>[^(\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
NOT_A_FUNCTION = re.compile(
    r"^\s*(?:inline\s+)?(?:namespace|class|struct|enum|union|extern\s*$|if|for|while|switch|do|else|try|catch)\b")


def blank(match):
    return "\n" * match.group(0).count("\n") + " "


def arguments_in(text, opening):
    """How many arguments the bracket at `opening` holds."""
    depth, commas, content = 0, 0, False
    for char in text[opening:]:
        if char in "([{<":
            depth += 1
        elif char in ")]}>":
            depth -= 1
            if depth == 0:
                break
        elif char == "," and depth == 1:
            commas += 1
        elif not char.isspace():
            content = True
    return commas + 1 if content else 0


def functions(code):
    """Yields (line, name, lines, parameters, nesting) of every function body in comment-free code."""
    depth, start = 0, 0  # start: where the text before the next brace begins
    inside = None  # depth at which the current function opened
    head_line = name = parameters = deepest = None
    for position, char in enumerate(code):
        if char in ";}" and inside is None:
            start = position + 1
        if char == "{":
            head = code[start:position]
            if inside is None:
                found = re.search(r"([A-Za-z_~][\w:~]*|operator\s*\S+?)\s*\(", head)
                if found and not NOT_A_FUNCTION.match(head) and "=" not in head[: found.start()]:
                    inside, deepest, name = depth, 0, found.group(1)
                    head_line = code.count("\n", 0, start + len(head) - len(head.lstrip())) + 1
                    parameters = arguments_in(head, found.end() - 1)
                else:
                    start = position + 1
            depth += 1
            if inside is not None:
                deepest = max(deepest, depth - inside - 1)
        elif char == "}":
            depth -= 1
            if inside is not None and depth == inside:
                lines = code.count("\n", 0, position) + 2 - head_line
                yield head_line, name, lines, parameters, deepest
                inside, start = None, position + 1


def template_lists(code):
    for match in re.finditer(r"\btemplate\s*<", code):
        yield code.count("\n", 0, match.start()) + 1, arguments_in(code, match.end() - 1)


def over_budget(name, text):
    """Yields one line for each thing in a file that is over its budget."""
    lines = text.splitlines()
    if len(lines) > FILE_LINES:
        yield f"{name}: {len(lines)} lines (file {FILE_LINES})"
    for number, line in enumerate(lines, start=1):
        if len(line) > COLUMNS:
            yield f"{name}:{number}: {len(line)} columns ({COLUMNS})"
    code = NOT_CODE.sub(blank, text)
    for number, function, length, parameters, nesting in functions(code):
        if length > FUNCTION_LINES:
            yield f"{name}:{number}: {function} has {length} lines (function {FUNCTION_LINES})"
        if parameters > PARAMETERS:
            yield f"{name}:{number}: {function} has {parameters} parameters ({PARAMETERS})"
        if nesting > NESTING:
            yield f"{name}:{number}: {function} nests {nesting} deep ({NESTING})"
    for number, count in template_lists(code):
        if count > TEMPLATE_PARAMETERS:
            yield f"{name}:{number}: a template of {count} parameters ({TEMPLATE_PARAMETERS})"


def macros_of(text):
    """Macros a file leaves defined (include guards and macros undefined again do not count)."""
    guard = re.match(r"(?:\s|/\*.*?\*/|//[^\n]*\n)*#ifndef (\w+)\s*\n#define \1\s*\n", text, re.DOTALL)
    defined = set(re.findall(r"^\s*#\s*define\s+(\w+)", text, re.MULTILINE))
    undefined = set(re.findall(r"^\s*#\s*undef\s+(\w+)", text, re.MULTILINE))
    return defined - undefined - ({guard.group(1)} if guard else set())


def library_bytes(root):
    library = root / "build/release/libsirdar.so"
    return library.stat().st_size if library.exists() else None


def main(arguments):
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent).resolve()
    macros, variables, source_lines, notes = set(), set(), 0, []
    files = [p for tree in TREES for p in sorted((root / tree).rglob("*")) if p.suffix in SUFFIXES]
    for path in files:
        name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        notes += over_budget(name, text)
        if name.startswith(("include/", "src/")):
            macros |= macros_of(text)
            variables |= set(re.findall(r'getenv\(\s*"(SIRDAR_\w+)"', text))
        if name.startswith("src/") and not name.startswith("src/reference/"):
            source_lines += len(text.splitlines())
    for note in notes:
        print(f"over budget: {note}")
    rows = [
        ("macros", len(macros), MACROS, ", ".join(sorted(macros))),
        ("environment variables", len(variables), ENVIRONMENT_VARIABLES, ", ".join(sorted(variables))),
        ("lines in src/ without the reference", source_lines, SOURCE_LINES, ""),
    ]
    for label, value, limit, detail in rows:
        mark = "over budget: " if value > limit else ""
        print(f"{mark}{label}: {value} of {limit}" + (f" ({detail})" if detail else ""))
    size = library_bytes(root)
    if size is None:
        print("libsirdar.so: not built (./dev build release)")
    else:
        print(f"libsirdar.so: {size} of {LIBRARY_BYTES} bytes")
    if size is not None and size > LIBRARY_BYTES:
        print("budget: the shared library is over its limit, which is enforced.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
