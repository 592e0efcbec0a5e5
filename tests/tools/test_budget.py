def body(lines):
    return "".join(f"  step({i});\n" for i in range(lines))


def test_a_small_tree_is_within_its_budgets(tool, tree):
    code, output = tool("budget.py", tree({"src/core/a.cc": "int f(int a) {\n  return a;\n}\n"}))
    assert code == 0
    assert "over budget" not in output


def test_what_is_too_large_is_reported_and_passes(tool, tree):
    root = tree({
        "src/core/long_file.cc": "// a line\n" * 501,
        "src/core/wide.cc": "// " + "x" * 98 + "\n",
        "src/core/long_function.cc": "namespace a {\nvoid climb(int x) {\n" + body(60) + "}\n}\n",
        "src/core/many.cc": "void seven(int a, int b, int c, int d, int e, int f, int g) {}\n",
        "src/core/deep.cc": "void deep() { for (;;) { if (1) { if (2) { if (3) { if (4) { } } } } } }\n",
        "src/core/generic.h": "template <class A, class B, class C, class D> struct Four {};\n",
    })
    code, output = tool("budget.py", root)
    assert code == 0
    for expected in (
        "src/core/long_file.cc: 501 lines",
        "src/core/wide.cc:1: 101 columns",
        "src/core/long_function.cc:2: climb has 62 lines",
        "src/core/many.cc:1: seven has 7 parameters",
        "src/core/deep.cc:1: deep nests 5 deep",
        "src/core/generic.h:1: a template of 4 parameters",
    ):
        assert expected in output, output


def test_what_is_just_within_is_not_reported(tool, tree):
    root = tree({
        "src/core/a.cc": "class A {\n void climb(int x) {\n" + body(58) + " }\n};\n",
        "src/core/b.cc": "void six(int a, int b, int c, int d, int e, std::map<int, int> f) {}\n",
        "src/core/c.cc": "void deep() { for (;;) { if (1) { if (2) { if (3) { } } } } }\n",
    })
    assert "over budget" not in tool("budget.py", root)[1]


def test_macros_and_environment_variables_are_counted(tool, tree):
    root = tree({
        "include/sirdar/a.h": "#ifndef GUARD\n#define GUARD\n#define SIRDAR_A 1\n#endif\n",
        "src/core/a.cc": '#define ROW 1\n#undef ROW\nauto x = std::getenv("SIRDAR_LOG");\n',
    })
    output = tool("budget.py", root)[1]
    assert "macros: 1 of 6 (SIRDAR_A)" in output
    assert "environment variables: 1 of 7 (SIRDAR_LOG)" in output


def test_a_library_that_is_too_large_fails(tool, tree):
    root = tree({"src/core/a.cc": "\n", "build/release/libsirdar.so": "x" * ((5 << 20) + 1)})
    code, output = tool("budget.py", root)
    assert code == 1
    assert "over its limit" in output
