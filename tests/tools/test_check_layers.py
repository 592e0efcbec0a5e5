def test_the_project_follows_its_diagram(tool):
    code, output = tool("check_layers.py")
    assert code == 0, output


def test_a_layer_that_reaches_upwards_is_named_with_its_line(tool, tree):
    root = tree({"src/core/rules.cc": '#include <vector>\n#include "plan/planner.h"\n'})
    code, output = tool("check_layers.py", root)
    assert code == 1
    assert "src/core/rules.cc:2: includes plan/planner.h" in output
    assert "core, expression, shared" in output


def test_what_the_diagram_allows_passes(tool, tree):
    root = tree({
        "src/core/rules.cc": '#include "core/rules.h"\n#include "expression/expression.h"\n',
        "src/plan/registry.cc": '#include "cpu/cpu.h"\n#include "reference/reference.h"\n',
        "include/sirdar/plan.hpp": "#include <sirdar/problem.hpp>\n#include <vector>\n",
    })
    code, output = tool("check_layers.py", root)
    assert code == 0, output


def test_only_the_registry_may_name_implementations_from_below(tool, tree):
    root = tree({"src/plan/planner.cc": '#include "cpu/cpu.h"\n'})
    assert tool("check_layers.py", root)[0] == 1


def test_io_knows_public_headers_only(tool, tree):
    root = tree({"src/io/npy.cc": '#include "core/validate.h"\n'})
    assert tool("check_layers.py", root)[0] == 1


def test_a_public_header_does_not_leak_an_internal_one(tool, tree):
    root = tree({"include/sirdar/plan.hpp": '#include "core/validate.h"\n'})
    assert tool("check_layers.py", root)[0] == 1


def test_a_new_folder_must_be_placed(tool, tree):
    root = tree({"src/magic/a.cc": '#include "core/validate.h"\n'})
    code, output = tool("check_layers.py", root)
    assert code == 1
    assert "has no row" in output


def test_an_empty_folder_is_bad_usage(tool, tmp_path):
    assert tool("check_layers.py", tmp_path)[0] == 2
