"""python/sirdar/_abi.py against the header, as the C compiler reads it."""

import ctypes
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from sirdar import _abi

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = ROOT / "include" / "sirdar" / "sirdar.h"
STRUCTS = {
    "sirdar_tensor": _abi.Tensor,
    "sirdar_expression_tensor": _abi.ExpressionTensor,
    "sirdar_problem": _abi.Problem,
    "sirdar_knob": _abi.Knob,
    "sirdar_plan_options": _abi.PlanOptions,
    "sirdar_executor": _abi.Executor,
    "sirdar_named_tensor": _abi.NamedTensor,
    "sirdar_named_value": _abi.NamedValue,
    "sirdar_args": _abi.Args,
    "sirdar_merge_args": _abi.MergeArgs,
    "sirdar_jit_options": _abi.JitOptions,
}
ENUMS = {
    "STATUS": _abi.STATUS,
    "DTYPE": {**_abi.DTYPES, "default": _abi.DTYPE_DEFAULT},
    "OP": _abi.OPS,
    "LAYOUT": _abi.LAYOUTS,
    "ALIGNMENT": _abi.ALIGNMENTS,
    "AXIS": _abi.AXES,
}


def struct_fields():
    """struct -> its fields, as the header's text lists them."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\n\} \1;", text, re.DOTALL):
        names = []
        for declaration in body.split(";"):
            if not declaration.strip():
                continue
            if "(*" in declaration:
                names.append(re.search(r"\(\*(\w+)\)", declaration).group(1))
                continue
            for part in declaration.split(","):
                names.append(re.search(r"(\w+)\s*(\[\d+\])?\s*$", part).group(1))
        yield name, names


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """What a C program says: "sizeof sirdar_tensor" and "sirdar_tensor.rank" -> number."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    lines = []
    for struct, names in struct_fields():
        lines.append(f'  printf("sizeof {struct} %zu\\n", sizeof({struct}));')
        for name in names:
            size = f"sizeof((({struct}*)0)->{name})"
            lines.append(
                f'  printf("{struct}.{name} %zu\\n", offsetof({struct}, {name}) * 1000 + {size});'
            )
    for prefix, values in ENUMS.items():
        for name in values:
            constant = f"SIRDAR_{prefix}_{name}"
            lines.append(f'  printf("{constant} %d\\n", (int){constant});')
    folder = tmp_path_factory.mktemp("abi")
    source = folder / "facts.c"
    body = "\n".join(lines)
    source.write_text(
        "#include <sirdar/sirdar.h>\n#include <stdio.h>\n#include <inttypes.h>\n"
        f'int main(void) {{\n{body}\n  printf("UNBOUNDED %" PRId64 "\\n", SIRDAR_UNBOUNDED);\n}}\n'
    )
    program = folder / "facts"
    subprocess.run(
        [compiler, "-std=c99", f"-I{ROOT / 'include'}", source, "-o", program], check=True
    )
    text = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in text.splitlines()}


def test_every_struct_of_the_header_is_mirrored():
    assert {name for name, _ in struct_fields()} == set(STRUCTS)


@pytest.mark.parametrize("struct", STRUCTS)
def test_fields_lie_where_c_puts_them(struct, facts):
    mirror = STRUCTS[struct]
    names = [name for name, *_ in mirror._fields_]
    assert names == dict(struct_fields())[struct]
    for name in names:
        field = getattr(mirror, name)
        assert facts[f"{struct}.{name}"] == field.offset * 1000 + field.size, name
    assert facts[f"sizeof {struct}"] == ctypes.sizeof(mirror)


@pytest.mark.parametrize("prefix", ENUMS)
def test_values_are_those_of_c(prefix, facts):
    for name, value in ENUMS[prefix].items():
        assert facts[f"SIRDAR_{prefix}_{name}"] == value, name


def test_no_value_of_the_header_is_left_out():
    rows = re.findall(r"row\((\w+), (\d+),", (HEADER.parent / "types.h").read_text())
    known = {*_abi.STATUS.items(), *_abi.DTYPES.items()}
    features = (HEADER.parent / "types.h").read_text().partition("SIRDAR_FEATURES")[2]
    features = set(re.findall(r"row\((\w+), (\d+),", features))
    assert {(name, int(value)) for name, value in set(rows) - features} == known
    assert _abi.UNBOUNDED == -(2**63) and _abi.MAX_RANK == 4


def test_the_unbounded_side_is_that_of_c(facts):
    assert facts["UNBOUNDED"] == _abi.UNBOUNDED


def test_every_function_that_is_declared_exists():
    library = _abi.library()
    declared = set(re.findall(r"SIRDAR_API [^;(]*?\b(sirdar_\w+)\(", HEADER.read_text()))
    assert set(_abi.FUNCTIONS) <= declared
    assert all(hasattr(library, name) for name in declared)


def test_defaults_are_those_of_the_library():
    problem = _abi.made(_abi.Problem)
    assert (problem.batch, problem.head_dim, problem.deterministic) == (1, 64, 1)
    assert problem.dtype_out == _abi.DTYPE_DEFAULT and problem.window_left == _abi.UNBOUNDED
