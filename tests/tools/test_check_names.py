import pytest


def test_the_project_uses_its_glossary(tool):
    code, output = tool("check_names.py")
    assert code == 0, output


@pytest.mark.parametrize(
    "line, word, instead",
    [
        ("int num_kv_heads = 1;", "num_kv_heads", "num_heads_kv"),
        ("float sm_scale_ = 1;", "sm_scale_", "softmax_scale"),
        ("run(block_table);", "block_table", "page_table"),
        ("template <int BLOCK_M> void f();", "BLOCK_M", "block_m"),
    ],
)
def test_a_synonym_is_named_with_its_line_and_the_word_to_use(tool, tree, line, word, instead):
    code, output = tool("check_names.py", tree({"src/core/a.cc": f"\n{line}\n"}))
    assert code == 1
    assert f"src/core/a.cc:2: {word}; the glossary's word is {instead}." in output


def test_comments_strings_and_longer_words_are_free(tool, tree):
    text = """
// elsewhere called sm_scale, and it's fine
/* block_table
   indptr */
const char* text = "kv_len is \\"block_table\\"";
const char* raw = R"(swa)";
int swath = 1'000'000; char quote = '"'; int hr_count = 0; char next = '"';
"""
    code, output = tool("check_names.py", tree({"src/core/a.cc": text}))
    assert code == 0, output


def test_a_digit_separator_hides_nothing(tool, tree):
    code, output = tool("check_names.py", tree({"cli/a.cc": "int a = 1'000; int indptr = 2'000;"}))
    assert code == 1
    assert "indptr" in output
