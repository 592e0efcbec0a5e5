"""What the functions return, against attention by its definition in float64."""

import formula
import numpy as np
import pytest
import sirdar


def definition(q, k, v, **options):
    """What formula.forward gives, for a dense batch."""
    sequences = [formula.forward(*rows, **options) for rows in zip(q, k, v, strict=True)]
    return {
        name: np.stack([one[name] for one in sequences]) for name in ("out", "lse", "max_logit")
    }


def close(actual, wanted, tolerance=3e-6):
    np.testing.assert_allclose(
        np.asarray(actual, np.float64), wanted, rtol=tolerance, atol=tolerance
    )


@pytest.fixture
def qkv(random):
    return random(2, 5, 4, 16), random(2, 7, 2, 16), random(2, 7, 2, 24)


def test_out_and_lse_are_those_of_the_definition(qkv):
    out, lse = sirdar.attention(*qkv, causal=True, return_lse=True)
    wanted = definition(*qkv, shown=formula.structured(5, 7, causal=True))
    assert out.dtype == lse.dtype == np.float32
    close(out, wanted["out"])
    close(lse, wanted["lse"])


def test_a_plan_of_a_text_and_one_of_arrays_compute_the_same(qkv):
    of_text = sirdar.plan("fwd b2 sq5 sk7 hq4 hkv2 d16 dv24 fp32 causal lse")
    of_arrays = sirdar.plan(*qkv, causal=True, return_lse=True)
    wanted = sirdar.attention(*qkv, causal=True, return_lse=True)
    for plan in (of_text, of_arrays):
        assert plan.name == "cpu.forward" and plan.device == "cpu"
        for actual, one in zip(plan(*qkv), wanted, strict=True):
            np.testing.assert_array_equal(actual, one)


def visible(batch, *shape):
    return np.random.default_rng(3).random((batch, *shape)) < 0.7


OPTIONS = [
    (dict(softmax_scale=0.3), dict(scale=0.3)),
    (dict(softmax_scale=0), dict(scale=0.0)),
    (dict(softcap=2.0), dict(softcap=2.0)),
    (
        dict(causal=True, alignment="top_left"),
        dict(shown=formula.structured(5, 7, causal=True, top_left=True)),
    ),
    (dict(window_left=2, window_right=1), dict(shown=formula.structured(5, 7, left=2, right=1))),
    (dict(window_left=0), dict(shown=formula.structured(5, 7, left=0))),
    (dict(chunk_size=3), dict(shown=formula.structured(5, 7, chunk=3))),
    (dict(mask=visible(5, 7)), dict(shown=visible(5, 7))),
    (
        dict(bias=np.arange(35, dtype=np.float32).reshape(5, 7) / 9),
        dict(bias=np.arange(35).reshape(5, 7) / 9),
    ),
    (dict(alibi=np.array([1, 0.5, 0.25, 0], np.float32)), dict(slope=[1, 0.5, 0.25, 0])),
    (dict(sink=np.array([0, 1, -1, 2], np.float32)), dict(sink=[0, 1, -1, 2])),
    (dict(mask_mod="q + k != 3"), dict(shown=np.add.outer(np.arange(5), np.arange(7)) != 3)),
]


@pytest.mark.parametrize("options, meaning", OPTIONS, ids=[str(sorted(o)) for o, _ in OPTIONS])
def test_every_option_has_its_meaning_forward_and_backward(options, meaning, qkv, random):
    q, k, v = qkv
    out, lse, max_logit = sirdar.attention(*qkv, **options, return_lse=True, return_max_logit=True)
    dout, dlse = random(2, 5, 4, 24), random(2, 4, 5)
    needs_dsink = "sink" in options
    got = sirdar.backward(dout, *qkv, out, lse, dlse=dlse, **options, needs_dsink=needs_dsink)
    for i in range(2):
        forward = formula.forward(q[i], k[i], v[i], **meaning)
        wanted = formula.backward(forward, dout[i], dlse[i])
        close(out[i], forward["out"])
        close(lse[i], forward["lse"])
        close(max_logit[i], forward["max_logit"])
        for name in ("dq", "dk", "dv"):
            close(getattr(got, name)[i], wanted[name], 2e-5)
    assert (got.dsink is not None) == needs_dsink and got.dbias is None and got.dtensors == {}


def test_the_gradients_of_a_bias_a_sink_and_tensors(qkv, random):
    bias, sink, slope = random(1, 4, 5, 7), random(4), random(4)
    options = dict(
        bias=bias, sink=sink, score_mod="score + slope[h] * (k - q_pos)", tensors={"slope": slope}
    )
    out, lse = sirdar.attention(*qkv, **options, return_lse=True)
    dout = random(2, 5, 4, 24)
    got = sirdar.backward(
        dout, *qkv, out, lse, **options, needs_dbias=True, needs_dsink=True, needs_dtensors="slope"
    )
    distance = np.arange(7)[None, None] - (np.arange(5)[None, :, None] + 2)
    dbias, dsink, dslope = np.zeros((1, 4, 5, 7)), np.zeros(4), np.zeros(4)
    for i in range(2):
        forward = formula.forward(
            *(x[i] for x in qkv), bias=bias[0] + slope[:, None, None] * distance, sink=sink
        )
        gradients = formula.backward(forward, dout[i])
        dbias += gradients["ds"]
        dsink += gradients["dsink"]
        dslope += (gradients["ds"] * distance).sum((1, 2))
    close(got.dbias, dbias, 2e-5)
    close(got.dsink, dsink, 2e-5)
    close(got.dtensors["slope"], dslope, 1e-4)


def test_a_ragged_batch_is_its_sequences(random):
    lengths_q, lengths_k = (3, 0, 6), (4, 2, 5)
    cu_seqlens_q = np.cumsum((0, *lengths_q), dtype=np.int32)
    cu_seqlens_k = np.cumsum((0, *lengths_k), dtype=np.int32)
    q, k, v = random(9, 4, 16), random(11, 2, 16), random(11, 2, 24)
    out, lse = sirdar.attention_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, causal=True, return_lse=True
    )
    gradients = sirdar.backward(
        out, q, k, v, out, lse, causal=True, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k
    )
    for i in (0, 2):
        rows = slice(cu_seqlens_q[i], cu_seqlens_q[i + 1])
        keys = slice(cu_seqlens_k[i], cu_seqlens_k[i + 1])
        one = sirdar.attention(
            q[None, rows], k[None, keys], v[None, keys], causal=True, return_lse=True
        )
        close(out[rows], one[0][0])
        close(lse[:, rows], one[1][0])
        grad = sirdar.backward(
            one[0], q[None, rows], k[None, keys], v[None, keys], *one, causal=True
        )
        close(gradients.dk[keys], grad.dk[0], 1e-5)
    assert (gradients.dk[4:6] == 0).all()  # keys that no query of theirs sees


def test_decoding_from_a_cache_and_from_pages(random):
    seqused_k = np.array([5, 8], np.int32)
    q, k, v = random(2, 4, 16), random(2, 8, 2, 16), random(2, 8, 2, 16)
    out, lse = sirdar.decode(q, k, v, seqused_k=seqused_k, return_lse=True)
    assert out.shape == (2, 4, 16) and lse.shape == (2, 4)
    for i, length in enumerate(seqused_k):
        one = sirdar.attention(q[i : i + 1, None], k[i : i + 1, :length], v[i : i + 1, :length])
        close(out[i], one[0, 0])
    # Four pages of four keys, those of the two sequences mixed.
    page_table = np.array([[2, 0], [3, 1]], np.int32)
    pages_k, pages_v = (
        np.full((4, 4, 2, 16), np.nan, np.float32),
        np.full((4, 4, 2, 16), np.nan, np.float32),
    )
    for i in range(2):
        for j, page in enumerate(page_table[i]):
            pages_k[page], pages_v[page] = k[i, 4 * j : 4 * j + 4], v[i, 4 * j : 4 * j + 4]
    paged = sirdar.decode(q, pages_k, pages_v, seqused_k=seqused_k, page_table=page_table)
    np.testing.assert_array_equal(paged, out)


def test_parts_of_the_keys_merge_into_the_whole(qkv):
    q, k, v = qkv
    parts = [
        sirdar.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(3), slice(3, 7))
    ]
    out, lse = sirdar.merge(*parts[0], *parts[1])
    whole = sirdar.attention(*qkv, return_lse=True)
    close(out, whole[0])
    close(lse, whole[1])
    nothing = np.zeros_like(out), np.full_like(lse, -np.inf)
    for actual, wanted in zip(sirdar.merge(*whole, *nothing), whole, strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_dropout_is_the_same_for_the_same_seed(qkv):
    drop = dict(dropout_p=0.5, dropout_seed=3, dropout_offset=1, return_lse=True)
    out, lse = sirdar.attention(*qkv, **drop)
    np.testing.assert_array_equal(out, sirdar.attention(*qkv, **drop)[0])
    other = sirdar.attention(*qkv, **dict(drop, dropout_seed=4))
    assert (out != other[0]).any()
    np.testing.assert_array_equal(lse, other[1])
    keep = {name: value for name, value in drop.items() if name != "return_lse"}
    gradients = sirdar.backward(out, *qkv, out, lse, **keep)
    assert np.isfinite(gradients.dq).all()


def test_empty_batches_and_rows_that_see_nothing(random):
    nothing = sirdar.attention(random(0, 5, 2, 8), random(0, 7, 2, 8), random(0, 7, 2, 8))
    assert nothing.shape == (0, 5, 2, 8)
    out, lse = sirdar.attention(
        random(1, 5, 2, 8), random(1, 0, 2, 8), random(1, 0, 2, 8), return_lse=True
    )
    assert (out == 0).all() and (lse == -np.inf).all()
    out = sirdar.attention(random(1, 5, 2, 8), random(1, 3, 2, 8), random(1, 3, 2, 8), causal=True)
    assert (out[:, :2] == 0).all() and (out[:, 2:] != 0).any()


def test_explain_and_properties_of_a_plan(qkv):
    text = sirdar.explain("fwd b2 sq4096 sk4096 hq32 hkv8 d128 bf16 causal", device="h200")
    assert "cuda.sm90.forward" in text and "workspace" in text
    plan = sirdar.plan(*qkv, num_threads=1)
    assert plan.workspace_bytes > 0 and plan.prepare() is plan and "cpu.forward" in repr(plan)
    assert plan.explain() == sirdar.explain(*qkv, num_threads=1)
    backward = sirdar.plan("bwd b2 sq5 sk7 hq4 hkv2 d16 dv24")
    out, lse = sirdar.attention(*qkv, return_lse=True)
    q, k, v = qkv
    results = backward.run(dout=out, q=q, k=k, v=v, out=out, lse=lse)
    np.testing.assert_array_equal(results["dq"], sirdar.backward(out, *qkv, out, lse).dq)
    of_text = sirdar.plan(
        'fwd b2 sq5 sk7 hq4 hkv2 d16 dv24 score_mod:"score * g[h] * c" tensor:g:fp32:1 scalar:c'
    )
    gain = np.ones(4, np.float32)
    np.testing.assert_allclose(of_text(*qkv, tensors={"g": gain}, scalars={"c": 1}), out, atol=1e-6)
    with pytest.raises(ValueError, match="'g' is missing"):
        of_text(*qkv, scalars={"c": 1})


def test_results_of_one_query_each_may_be_given_in_either_shape(random):
    q, k, v = random(2, 4, 16), random(2, 7, 2, 16), random(2, 7, 2, 16)
    out, lse = sirdar.decode(q, k, v, return_lse=True)
    for shape in ((2, 4), (2, 4, 1)):
        given_out, given_lse = np.empty_like(q), np.empty(shape, np.float32)
        got = sirdar.decode(q, k, v, out=given_out, lse=given_lse)
        assert got[1].shape == (2, 4)
        np.testing.assert_array_equal(given_out, out)
        np.testing.assert_array_equal(given_lse.reshape(2, 4), lse)


def test_merge_takes_any_strides(qkv):
    out, lse = sirdar.attention(*qkv, return_lse=True)
    wide = np.repeat(out, 2, axis=-1)
    for a, b in ((wide[..., ::2], out), (out, wide[..., ::2])):
        for one, other in zip(sirdar.merge(a, lse, b, lse), sirdar.merge(out, lse, out, lse)):
            np.testing.assert_array_equal(one, other)


def test_a_dtype_has_the_names_of_every_framework(qkv):
    half = [array.astype(np.float16) for array in qkv]
    wanted = sirdar.attention(*half, dtype_out="fp32")
    for dtype in ("float32", np.float32, np.dtype("float32")):
        np.testing.assert_array_equal(sirdar.attention(*half, dtype_out=dtype), wanted)
    for dtype in ("float64", np.float64, 3):
        with pytest.raises(ValueError, match="^dtype_out: .* is not one of fp32"):
            sirdar.attention(*half, dtype_out=dtype)


def test_a_number_of_another_library_is_read_at_every_call():
    q = np.random.default_rng(0).standard_normal((1, 6, 2, 8), dtype=np.float32)
    scale = np.array(0.1)
    first = sirdar.attention(q, q, q, softmax_scale=scale)
    scale[()] = 2.0
    second = sirdar.attention(q, q, q, softmax_scale=scale)
    assert np.array_equal(first, sirdar.attention(q, q, q, softmax_scale=0.1))
    assert np.array_equal(second, sirdar.attention(q, q, q, softmax_scale=2.0))
    out, lse = sirdar.attention(q, q, q, softmax_scale=2.0, return_lse=True)
    gradients = [sirdar.backward(q, q, q, q, out, lse, softmax_scale=x).dq for x in (scale, 2.0)]
    assert np.array_equal(*gradients)
    scale[()] = 0.5
    changed = sirdar.backward(q, q, q, q, out, lse, softmax_scale=scale).dq
    assert not np.array_equal(changed, gradients[0])
