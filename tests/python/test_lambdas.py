"""Functions that are traced: what they become, what they compute, what they cannot be."""

import functools
import types

import numpy as np
import pytest
import sirdar
from sirdar import _trace
from sirdar import expressions as ex

slope = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
doc = np.array([[0, 0, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 1, 1]], np.int32)
width = np.array(3, np.int32)
cap = 30.0


def text_of(score_mod=None, mask_mod=None, **named):
    texts = _trace.traced(score_mod, mask_mod, named.get("tensors"), named.get("scalars"))
    return texts[0] if mask_mod is None else texts[1]


def helper(h):
    return slope[h] * 2


CASES = [
    (lambda score, b, h, q, k: score + slope[h] * (k - q), "score + slope[h] * (k - q)"),
    (lambda score, b, h, q_idx, kv_idx: score + (kv_idx - q_idx), "score + (k - q)"),
    (lambda score, k, q_pos: score - abs(q_pos - k) * 2, "score - abs(q_pos - k) * 2"),
    (lambda score: cap * np.tanh(score / cap), "30.0 * tanh(score / 30.0)"),
    (lambda score: score**2 - -score, "score * score - -score"),
    (lambda score: 1e-7 * score + 1e22, "1e-07 * score + 1e+22"),
    (lambda score, q, k: score + q / k, "score + q * 1.0 / k"),
    (lambda score, q, k: score + (q > k), "score + (q > k ? 1 : 0)"),
    (lambda score, q, k: ex.where(q >= k, score, -np.inf), "q >= k ? score : -inf"),
    (lambda score, q, k: ex.minimum(q, k) + ex.sigmoid(score), "min(q, k) + sigmoid(score)"),
    (lambda score, q: np.where(q == 0, score, np.float32(0.5)), "q == 0 ? score : 0.5"),
    (lambda score, q: ex.clip(score, -1, None) + ex.floor(score), "max(score, -1) + floor(score)"),
    (lambda score, h: score + helper(h), "score + slope[h] * 2"),
    (lambda score, h, table=slope: score + table[h], "score + table[h]"),
    (lambda score: score, "score"),
    (lambda score: 0, "0"),
]
MASKS = [
    (lambda b, h, q, k: (q >= k) & (doc[b, q] == doc[b, k]), "q >= k && doc[b, q] == doc[b, k]"),
    (lambda b, h, q, k: q // 128 == k // 128, "q / 128 == k / 128"),
    (lambda q_pos, k: (q_pos - k) % 4 == 0, "((q_pos - k) % 4 + 4) % 4 == 0"),
    (lambda q, k: (q % 4 == k % 4) | ~(q > k), "q % 4 == k % 4 || !(q > k)"),
    (lambda q, k: (q > k) ^ (k < 2), "q > k != k < 2"),
    (lambda q, k: k < width, "k < width[0]"),
    (lambda q: True, "true"),
]


@pytest.mark.parametrize("function, text", CASES, ids=[text for _, text in CASES])
def test_a_score_mod_becomes_its_text(function, text):
    assert text_of(function) == text
    assert text_of(function) == text  # from what is remembered


@pytest.mark.parametrize("function, text", MASKS, ids=[text for _, text in MASKS])
def test_a_mask_mod_becomes_its_text(function, text):
    assert text_of(mask_mod=function) == text


@pytest.fixture
def qkv(random):
    return random(2, 7, 4, 16), random(2, 7, 4, 16), random(2, 7, 4, 16)


@pytest.mark.parametrize("function, text", CASES[:4] + CASES[6:13])
def test_a_function_and_its_text_compute_the_same_bits(function, text, qkv):
    named = {name: array for name, array in (("slope", slope), ("table", slope)) if name in text}
    of_text = sirdar.attention(*qkv, score_mod=text, tensors=named or None)
    np.testing.assert_array_equal(sirdar.attention(*qkv, score_mod=function), of_text)


def test_python_division_and_remainder_round_down(qkv):
    """// and % of negative numbers, which the language rounds towards 0."""
    q, k, v = qkv
    i, j = np.arange(7)[:, None], np.arange(7)[None]
    bias = ((j - i) // 3 + (j - i) % 5 + (i - j) % 4.5).astype(np.float32)
    actual = sirdar.attention(
        q, k, v, score_mod=lambda score, q, k: score + (k - q) // 3 + (k - q) % 5 + (q - k) % 4.5
    )
    np.testing.assert_allclose(actual, sirdar.attention(q, k, v, bias=bias), atol=2e-6)


def test_documents_by_lambda_are_documents_by_name(qkv):
    by_lambda = sirdar.attention(
        *qkv, mask_mod=lambda b, h, q, k: doc[b, q] == doc[b, k], causal=True
    )
    by_name = sirdar.attention(*qkv, document_q=doc, document_k=doc, causal=True)
    np.testing.assert_allclose(by_lambda, by_name, rtol=1e-6, atol=1e-6)


def test_arrays_and_numbers_of_a_closure_are_read_at_every_call(qkv):
    def attend(gain, factor):
        return sirdar.attention(*qkv, score_mod=lambda score, h: score * gain[h] * factor)

    for gain, factor in ((slope, 1.0), (slope[::-1], 1.0), (slope, 2.0)):
        wanted = sirdar.attention(
            *qkv, score_mod="score * g[h] * f", tensors={"g": gain}, scalars={"f": factor}
        )
        np.testing.assert_allclose(attend(gain, factor), wanted, atol=1e-6)


def test_tensors_and_scalars_given_by_name_win(qkv):
    other = slope * 3
    actual = sirdar.attention(
        *qkv, score_mod=lambda score, h: score + slope[h] * gain, tensors={"slope": other},
        scalars={"gain": 2.0},
    )  # fmt: skip
    wanted = sirdar.attention(
        *qkv, score_mod="score + slope[h] * gain", tensors={"slope": other}, scalars={"gain": 2.0}
    )
    np.testing.assert_array_equal(actual, wanted)


def test_names_that_the_language_has_are_renamed():
    q = slope

    def outer(values):
        return lambda score, b, h, i, j: score + q[h] * values[h]

    text, _, tensors, _ = _trace.traced(outer(slope * 2), None, None, None)
    assert text == "score + q_[h] * values[h]"
    assert tensors["q_"] is q


def test_one_array_in_both_functions_is_one_tensor():
    texts = _trace.traced(
        lambda score, h: score + slope[h], lambda h, k: slope[h] * k < 1, None, None
    )
    assert list(texts[2]) == ["slope"]


def test_partial_functions(qkv):
    def mod(score, b, h, q, k, table):
        return score + table[h]

    actual = sirdar.attention(*qkv, score_mod=functools.partial(mod, table=slope))
    wanted = sirdar.attention(*qkv, score_mod="score + t[h]", tensors={"t": slope})
    np.testing.assert_array_equal(actual, wanted)


def test_the_gradient_of_a_captured_array(qkv):
    def mod(score, b, h, q, k):
        return score + slope[h] * (k - q)

    out, lse = sirdar.attention(*qkv, score_mod=mod, return_lse=True)
    got = sirdar.backward(out, *qkv, out, lse, score_mod=mod, needs_dtensors=("slope",))
    wanted = sirdar.backward(
        out, *qkv, out, lse, score_mod="score + slope[h] * (k - q)", tensors={"slope": slope},
        needs_dtensors=("slope",),
    )  # fmt: skip
    np.testing.assert_array_equal(got.dtensors["slope"], wanted.dtensors["slope"])


def endless(score):
    return endless(score) + 1


class Holder:
    table = slope


@pytest.mark.parametrize(
    "function, part",
    [
        (lambda score, q, k: score if q > k else 0, "where(condition, x, y)"),
        (lambda score, q, k: 1 < q < 3, "chained comparisons"),
        (lambda score, q: score + slope, "read an element"),
        (lambda score, q: score + slope[q, q], "rank 1 and 2 indices"),
        (lambda score, q: score + slope[score], "must be a whole number"),
        (lambda score, q: score + slope[q:], "slice"),
        (lambda score, q: score + Holder.table[q], "by a name of its own"),
        (lambda score, q: score + slope.sum(), "slope.sum is not in the language"),
        (lambda score, q: float(score), "has no value while it is traced"),
        (lambda score, q: np.sin(score), "sin of a traced value"),
        (lambda score, q: score & q, "is a number and &, | and ~ take conditions"),
        (lambda score, q: score**1.5, "to the power of 1.5"),
        (lambda score, q: score**q, "to the power of a traced value"),
        (lambda score, q: score**width, "to the power of a traced value"),
        (lambda score, q: 2**q, "a power of the traced 'q'"),
        (lambda score, q: q >> 1, ">> of the traced 'q'"),
        (lambda score, q: 1 << width, "<< of the traced 'width[0]'"),
        (lambda score, q: divmod(q, 2)[0], "divmod of the traced 'q'"),
        (lambda score, q: round(score), "rounding other than floor"),
        (lambda score, q: score[0], "an element of the traced 'score'"),
        (lambda score, q: {score: 1}, "a hash of the traced 'score'"),
        (lambda score, q: score.exp(), "'score' is traced and has no .exp"),
        (lambda score, q: np.max(score), "max of 1 such arguments"),
        (lambda score, q: np.max(score, 0), "max of 2 such arguments"),
        (lambda score, q: np.sum(score), "sum of a traced value"),
        (lambda score, q: endless(score), "calls itself without an end"),
        (lambda score, q: None, "NoneType cannot be used"),
        (lambda score, q: q > 2, "must return a score"),
        (lambda score, x, y: score, "its parameters are (score, x, y)"),
        (lambda *rest: rest, "name the parameters"),
        (3, "neither a text nor a function"),
    ],
)
def test_what_cannot_be_traced_is_a_type_error_with_a_sentence(function, part, qkv):
    kind = ValueError if "rank" in part else TypeError
    with pytest.raises(kind) as error:
        sirdar.attention(*qkv, score_mod=function)
    assert part in str(error.value) and str(error.value).startswith("score_mod: ")
    assert "\n" not in str(error.value)


def test_a_mask_is_a_condition(qkv):
    with pytest.raises(TypeError, match="must return a condition"):
        sirdar.attention(*qkv, mask_mod=lambda q, k: q - k)
    with pytest.raises(ValueError, match="NaN"):
        sirdar.attention(*qkv, score_mod=lambda score: score + float("nan"))
    with pytest.raises(ValueError, match="32 bits"):
        sirdar.attention(*qkv, mask_mod=lambda q, k: q < 2**40)


def of_length(table):
    return lambda score, b, h, q, k: score + table[ex.clip(k - q, 0, len(table) - 1)]


def of_width(table):
    return lambda score, h, q, k: score + table[h, ex.clip(k - q, 0, table.shape[1] - 1)]


def of_a_module(module):
    return lambda score: score * module.scale


def of_a_number(number):
    return lambda score: score * number


def of_an_object(thing):
    return lambda score: score * thing.scale


def of_a_method(method):
    return lambda score: score * method(0)


def of_a_list(numbers):
    return lambda score: score * numbers[0]


def module_of(scale):
    module = types.ModuleType("settings")
    module.scale = scale
    return module


@pytest.mark.parametrize(
    "make, first, second, part",
    [
        (of_length, np.zeros(5, np.float32), np.zeros(9, np.float32), "8"),
        (of_width, np.zeros((4, 5), np.float32), np.zeros((4, 9), np.float32), "8"),
        (of_length, np.zeros(5, np.float32), np.zeros(5, np.int32), "4"),
        (of_a_module, module_of(2.0), module_of(3.0), "3.0"),
        (of_a_number, 0.0, -0.0, "-0.0"),
        (of_a_number, 1, 1.0, "1.0"),
        (of_a_number, True, 1, "1"),
        (of_an_object, types.SimpleNamespace(scale=2.0), types.SimpleNamespace(scale=3.0), "3.0"),
        (of_a_method, [2.0].__getitem__, [3.0].__getitem__, "3.0"),
        (of_a_list, [2.0], [3.0], "3.0"),
    ],
)
def test_what_a_function_reaches_is_read_at_every_call(make, first, second, part):
    """As a trace that nothing is remembered of, in both orders."""
    for one, other in ((first, second), (second, first)):
        wanted = []
        for value in (one, other):
            _trace._traces.clear()
            wanted.append(text_of(make(value)))
        _trace._traces.clear()
        assert [text_of(make(one)), text_of(make(other))] == wanted
    assert part in text_of(make(second))


def test_one_object_that_changes_is_read_at_every_call():
    module, numbers, thing = module_of(2.0), [2.0], types.SimpleNamespace(scale=2.0)
    functions = (
        of_a_module(module), of_a_list(numbers), of_an_object(thing), of_a_method(numbers.__getitem__)
    )  # fmt: skip
    assert [text_of(one) for one in functions] == ["score * 2.0"] * 4
    module.scale = numbers[0] = thing.scale = 3.0
    assert [text_of(one) for one in functions] == ["score * 3.0"] * 4


gain = 2.0


@pytest.mark.parametrize(
    "function",
    [
        lambda score: (lambda: score * gain)(),
        lambda score: [score * gain for _ in range(1)][0],
        lambda score: max(score * gain for _ in range(1)),
        lambda score: (lambda: (lambda: score * gain)())(),
        lambda score: score * globals()["gain"],
        lambda score: eval("score * gain", {"score": score, **globals()}),
    ],
)
def test_globals_of_functions_within_a_function_are_read_at_every_call(function, monkeypatch):
    first = text_of(function)
    monkeypatch.setitem(globals(), "gain", 3.0)
    assert text_of(function) == first.replace("2.0", "3.0") != first


def times(score, count):
    return score if count == 0 else times(score, count - 1) * 2


def test_a_function_that_calls_itself_and_ends():
    assert text_of(lambda score: times(score, 2)) == "score * 2 * 2"


def test_arrays_of_functions_within_a_function_are_found(qkv):
    actual = sirdar.attention(*qkv, score_mod=lambda score, h: (lambda: score + slope[h])())
    wanted = sirdar.attention(*qkv, score_mod="score + t[h]", tensors={"t": slope})
    np.testing.assert_array_equal(actual, wanted)


def test_which_given_tensor_a_captured_array_is_decides_the_text():
    given = {"x": slope, "y": slope * 2}

    def of(table):
        return lambda score, h: score + table[h]

    texts = [_trace.traced(of(given[n]), None, given, None)[0] for n in ("x", "y", "x")]
    assert texts == ["score + x[h]", "score + y[h]", "score + x[h]"]


def test_what_is_steady_is_traced_once(monkeypatch):
    """Otherwise the tests of what is read again at every call would hold for a tracer without a memory."""
    for function in (
        CASES[0][0],
        CASES[3][0],
        of_length(slope),
        lambda score: (lambda: score * gain)(),
    ):
        text = text_of(function)
        with monkeypatch.context() as patch:
            patch.setattr(_trace, "_run", None)
            assert text_of(function) == text


def test_traces_are_bounded_and_the_oldest_go():
    for count in range(_trace._MAX_TRACES + 9):
        text_of(lambda score, more=float(count): score + more)
    assert len(_trace._traces) == _trace._MAX_TRACES
