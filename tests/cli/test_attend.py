"""`sirdar attend`: every flag, forward and backward, against the NumPy formula."""

import re

import formula
import numpy as np
import pytest
from conftest import from_bf16, load_raw_safetensors, save_raw_safetensors, to_bf16

B, SQ, SK, HQ, HKV, D, DV = 2, 5, 9, 4, 2, 8, 6
RNG = np.random.default_rng(20)
Q = RNG.standard_normal((B, SQ, HQ, D)).astype(np.float32)
K = RNG.standard_normal((B, SK, HKV, D)).astype(np.float32)
V = RNG.standard_normal((B, SK, HKV, DV)).astype(np.float32)
DOUT = RNG.standard_normal((B, SQ, HQ, DV)).astype(np.float32)
DLSE = RNG.standard_normal((B, HQ, SQ)).astype(np.float32)
BIAS = RNG.standard_normal((B, HQ, SQ, SK)).astype(np.float32)
BIAS_2D = RNG.standard_normal((SQ, SK)).astype(np.float32)
ALIBI = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
ALIBI_2D = RNG.uniform(0.1, 1, (B, HQ)).astype(np.float32)
SINK = np.array([0.5, -1, 2, 0], np.float32)
MASK = RNG.random((B, 1, SQ, SK)) < 0.6
MASK[0, 0, 2] = False  # an empty row
DOC_Q, DOC_K = np.array([[0, 0, 1, 1, 1]]), np.array([[0, 0, 0, 1, 1, 1, 1, 1, 2]])
SLOPE = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
I, J = np.arange(SQ)[:, None], np.arange(SK)[None, :]
INPUTS = ["--q", "q.npy", "--k", "k.npy", "--v", "v.npy"]
FORWARD = ["-o", "out.npy", "--lse", "lse.npy", "--max-logit", "max_logit.npy"]
BACKWARD = ["--dout", "dout.npy", "--dq", "dq.npy", "--dk", "dk.npy", "--dv", "dv.npy"]


def mod(s, h, i, j):
    return s * 0.75 + SLOPE[h].astype(np.float64) * (j - (i + SK - SQ)), np.full_like(s, 0.75)


# name -> (files, flags, what the formula is told for sequence b)
FEATURES = {
    "scale": ({}, ["--scale", "-0.7"], lambda b: dict(scale=-0.7)),
    "softcap": ({}, ["--softcap", "0.8"], lambda b: dict(softcap=0.8)),
    "bias": ({"bias": BIAS}, ["--bias", "bias.npy"], lambda b: dict(bias=BIAS[b])),
    "bias of two axes": ({"bias": BIAS_2D}, ["--bias", "bias.npy"], lambda b: dict(bias=BIAS_2D)),
    "bias in fp16": ({"bias": BIAS.astype(np.float16)}, ["--bias", "bias.npy"],
                     lambda b: dict(bias=BIAS[b].astype(np.float16).astype(np.float64))),
    "bias for all heads": ({"bias": BIAS[:1, :1]}, ["--bias", "bias.npy"],
                           lambda b: dict(bias=BIAS[0, :1])),
    "alibi": ({"alibi": ALIBI}, ["--alibi", "alibi.npy"], lambda b: dict(slope=ALIBI)),
    "alibi for each sequence": ({"alibi": ALIBI_2D}, ["--alibi", "alibi.npy"],
                                lambda b: dict(slope=ALIBI_2D[b])),
    "sink": ({"sink": SINK}, ["--sink", "sink.npy"], lambda b: dict(sink=SINK)),
    "causal": ({}, ["--causal"], lambda b: dict(shown=formula.structured(SQ, SK, True))),
    "causal top-left": ({}, ["--causal=top-left"],
                        lambda b: dict(shown=formula.structured(SQ, SK, True, top_left=True))),
    "window": ({}, ["--window", "2,1"],
               lambda b: dict(shown=formula.structured(SQ, SK, left=2, right=1))),
    "window, left side only": ({}, ["--window", "3,"],
                               lambda b: dict(shown=formula.structured(SQ, SK, left=3))),
    "window, right side only": ({}, ["--window", ",0"],
                                lambda b: dict(shown=formula.structured(SQ, SK, right=0))),
    "chunk": ({}, ["--chunk", "3"], lambda b: dict(shown=formula.structured(SQ, SK, chunk=3))),
    "causal window in chunks": (
        {}, ["--causal", "--window", "4,4", "--chunk", "4"],
        lambda b: dict(shown=formula.structured(SQ, SK, True, 4, 4, 4))),
    "document": ({"dq_ids": DOC_Q, "dk_ids": DOC_K},
                 ["--document-q", "dq_ids.npy", "--document-k", "dk_ids.npy"],
                 lambda b: dict(shown=DOC_Q[0][:, None] == DOC_K[0][None, :])),
    "mask": ({"mask": MASK}, ["--mask", "mask.npy"], lambda b: dict(shown=MASK[b])),
    "mask of two axes": ({"mask": MASK[1, 0]}, ["--mask", "mask.npy"],
                         lambda b: dict(shown=MASK[1, 0])),
    "mask_mod": ({}, ["--mask-mod", "q_pos >= k || k % 3 == 0"],
                 lambda b: dict(shown=(I + SK - SQ >= J) | (J % 3 == 0))),
    "score_mod": ({"slope": SLOPE},
                  ["--score-mod", "score * gain + slope[h] * (k - q_pos)", "--tensor",
                   "slope=slope.npy", "--scalar", "gain=0.75"], lambda b: dict(mod=mod)),
}


def stack(results, key):
    return np.stack([r[key] for r in results])


def close(actual, expected, tolerance=2e-5):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def results_of(told, q=Q, k=K, v=V, dout=DOUT, dlse=None):
    forwards = [formula.forward(q[b], k[b], v[b], **told(b)) for b in range(B)]
    backwards = [formula.backward(f, dout[b], None if dlse is None else dlse[b])
                 for b, f in enumerate(forwards)]
    return forwards, backwards


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_is_what_the_formula_says(sirdar, name):
    files, flags, told = FEATURES[name]
    sirdar.save(q=Q, k=K, v=V, dout=DOUT, **files)
    result = sirdar.ok("attend", *INPUTS, *flags, *FORWARD, *BACKWARD, "--check")
    assert len(result.out.splitlines()) == 1 and result.out.rstrip().endswith("ok")
    forwards, backwards = results_of(told)
    for key in ("out", "lse", "max_logit"):
        close(sirdar.load(key), stack(forwards, key))
    for key in ("dq", "dk", "dv"):
        close(sirdar.load(key), stack(backwards, key))
    plain, plain_backward = results_of(lambda b: {})
    assert np.abs(sirdar.load("out") - stack(plain, "out")).max() > 1e-3, "no effect"
    assert np.abs(sirdar.load("dq") - stack(plain_backward, "dq")).max() > 1e-3, "no effect"


def test_check_prints_the_largest_error(sirdar):
    sirdar.save(q=8 * Q, k=K, v=V * np.geomspace(1e-3, 1e3, SK).astype(np.float32)[:, None, None])
    result = sirdar.ok("attend", *INPUTS, "--scale", "0.5", "-o", "out.npy", "--check")
    v = sirdar.load("v")
    wanted = np.stack([formula.forward(8 * Q[b], K[b], v[b], scale=0.5)["out"] for b in range(B)])
    printed = float(re.search(r"max error ([-+.e\d]+)", result.out)[1])
    assert printed == pytest.approx(np.abs(sirdar.load("out") - wanted).max(), rel=0.06)


def test_gradients_of_lse_bias_sink_and_tensors(sirdar):
    sirdar.save(q=Q, k=K, v=V, dout=DOUT, dlse=DLSE, bias=BIAS_2D, sink=SINK, slope=SLOPE)
    sirdar.ok("attend", *INPUTS, *BACKWARD, "--bias", "bias.npy", "--sink", "sink.npy",
              "--score-mod", "score * 0.75 + slope[h] * (k - q_pos)", "--tensor", "slope=slope.npy",
              "--dlse", "dlse.npy", "--dbias", "dbias.npy", "--dsink", "dsink.npy",
              "--dtensor", "slope=dslope.npy", "--check")
    _, backwards = results_of(lambda b: dict(bias=BIAS_2D, sink=SINK, mod=mod), dlse=DLSE)
    for key in ("dq", "dk", "dv"):
        close(sirdar.load(key), stack(backwards, key))
    ds = stack(backwards, "ds")  # with respect to what score_mod returns
    close(sirdar.load("dbias"), 0.75 * ds.sum((0, 1)))
    close(sirdar.load("dsink"), stack(backwards, "dsink").sum(0))
    close(sirdar.load("dslope"), (ds * (J - (I + SK - SQ))).sum((0, 2, 3)), 1e-4)


def test_dlse_changes_the_gradients(sirdar):
    sirdar.save(q=Q, k=K, v=V, dout=DOUT, dlse=DLSE)
    sirdar.ok("attend", *INPUTS, *BACKWARD)
    without = sirdar.load("dq")
    sirdar.ok("attend", *INPUTS, *BACKWARD, "--dlse", "dlse.npy")
    assert np.abs(sirdar.load("dq") - without).max() > 1e-2


def test_used_lengths(sirdar):
    used_q, used_k = np.array([3, 5], np.int64), np.array([9, 4], np.int32)
    sirdar.save(q=Q, k=K, v=V, used_q=used_q, used_k=used_k, dout=DOUT)
    sirdar.ok("attend", *INPUTS, "--causal", "--seqused-q", "used_q.npy", "--seqused-k",
              "used_k.npy", *FORWARD, *BACKWARD)
    for b in range(B):
        m, n = used_q[b], used_k[b]
        f = formula.forward(Q[b, :m], K[b, :n], V[b, :n], shown=formula.structured(m, n, True))
        g = formula.backward(f, DOUT[b, :m])
        close(sirdar.load("out")[b, :m], f["out"])
        close(sirdar.load("lse")[b, :, :m], f["lse"])
        close(sirdar.load("dq")[b, :m], g["dq"])
        close(sirdar.load("dk")[b, :n], g["dk"])
        close(sirdar.load("dv")[b, :n], g["dv"])
        assert not sirdar.load("out")[b, m:].any() and not sirdar.load("dk")[b, n:].any()
        assert np.isneginf(sirdar.load("lse")[b, :, m:]).all()


def test_ragged_batches(sirdar):
    cu_q, cu_k = np.array([0, 3, 3, 8]), np.array([0, 5, 9, 16], np.int32)
    q, k, v = (RNG.standard_normal(s).astype(np.float32)
               for s in ((8, HQ, D), (16, HKV, D), (16, HKV, DV)))
    dout = RNG.standard_normal((8, HQ, DV)).astype(np.float32)
    sirdar.save(q=q, k=k, v=v, cu_q=cu_q, cu_k=cu_k, dout=dout)
    sirdar.ok("attend", *INPUTS, "--causal", "--cu-seqlens-q", "cu_q.npy", "--cu-seqlens-k",
              "cu_k.npy", *FORWARD, *BACKWARD, "--check")
    assert sirdar.load("lse").shape == (HQ, 8)
    for b in range(3):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        shown = formula.structured(rows.stop - rows.start, keys.stop - keys.start, True)
        f = formula.forward(q[rows], k[keys], v[keys], shown=shown)
        g = formula.backward(f, dout[rows])
        close(sirdar.load("out")[rows], f["out"])
        close(sirdar.load("lse")[:, rows], f["lse"])
        close(sirdar.load("dq")[rows], g["dq"])
        close(sirdar.load("dk")[keys], g["dk"])
        close(sirdar.load("dv")[keys], g["dv"])


def test_paged_keys(sirdar):
    table, used = np.array([[4, 1, 0], [2, 3, 0]]), np.array([9, 5])
    k, v = (np.full((5, 3, HKV, d), np.nan, np.float32) for d in (D, DV))
    for b in range(B):
        for j in range(used[b]):
            k[table[b, j // 3], j % 3] = K[b, j]
            v[table[b, j // 3], j % 3] = V[b, j]
    sirdar.save(q=Q, k=k, v=v, table=table, used=used)
    sirdar.ok("attend", *INPUTS, "--page-table", "table.npy", "--seqused-k", "used.npy", "--causal",
              "-o", "out.npy")
    for b in range(B):
        n = used[b]
        shown = formula.structured(SQ, n, True)
        close(sirdar.load("out")[b], formula.forward(Q[b], K[b, :n], V[b, :n], shown=shown)["out"])


def test_layout_bhsd(sirdar):
    def swap(x):
        return np.ascontiguousarray(x.swapaxes(1, 2))
    sirdar.save(q=swap(Q), k=swap(K), v=swap(V), dout=swap(DOUT))
    sirdar.ok("attend", *INPUTS, "--layout", "bhsd", *FORWARD, *BACKWARD)
    forwards, backwards = results_of(lambda b: {})
    close(swap(sirdar.load("out")), stack(forwards, "out"))
    close(sirdar.load("lse"), stack(forwards, "lse"))
    for key in ("dq", "dk", "dv"):
        close(swap(sirdar.load(key)), stack(backwards, key))


def test_dropout_keeps_lse_and_rescales_what_it_keeps(sirdar):
    eye = np.broadcast_to(np.eye(SK, dtype=np.float32)[:, None], (B, SK, HKV, SK))
    sirdar.save(q=Q, k=K, v=eye)
    outs = []
    for seed, offset in ((1, 0), (1, 0), (2, 0), (1, 1)):
        sirdar.ok("attend", *INPUTS, "--dropout", f"0.25,{seed},{offset}", "-o", "out.npy", "--lse",
                  "lse.npy")
        outs.append(sirdar.load("out"))
    forwards, _ = results_of(lambda b: {})
    close(sirdar.load("lse"), stack(forwards, "lse"))
    weights = stack(forwards, "p").swapaxes(1, 2) / 0.75  # with V = 1, out is the weights
    kept = outs[0] != 0
    close(outs[0], np.where(kept, weights, 0))
    assert 0.6 < kept.mean() < 0.9
    np.testing.assert_array_equal(outs[0], outs[1])
    assert (outs[0] != outs[2]).any() and (outs[0] != outs[3]).any()


@pytest.mark.parametrize("dtype, convert, epsilon", [
    ("fp16", lambda x: x.astype(np.float16).astype(np.float64), 2 ** -10),
    ("bf16", lambda x: from_bf16(to_bf16(x)).astype(np.float64), 2 ** -7)])
def test_dtype_rounds_the_inputs_first(sirdar, dtype, convert, epsilon):
    wide = [x.astype(np.float64) * 3 for x in (Q, K, V, DOUT)]
    sirdar.save(q=wide[0], k=wide[1], v=wide[2], dout=wide[3])
    result = sirdar.ok("attend", *INPUTS, "--dtype", dtype, *FORWARD, *BACKWARD, "--check")
    forwards, backwards = results_of(lambda b: {}, *map(convert, wide))
    # lse is fp32: it shows which inputs were used. The others are rounded to the type itself.
    close(sirdar.load("lse"), stack(forwards, "lse"))
    exact, _ = results_of(lambda b: {}, *wide)
    assert np.abs(sirdar.load("lse") - stack(exact, "lse")).max() > 10 * 2e-5
    close(sirdar.load("out"), stack(forwards, "out"), 2 * epsilon)
    close(sirdar.load("dv"), stack(backwards, "dv"), 8 * epsilon)
    assert ("float32" in result.err) == (dtype == "bf16")  # .npy has fp16 but no bf16


def test_bf16_in_safetensors(sirdar):
    file = sirdar.folder / "in.safetensors"
    save_raw_safetensors(file, {n: ("BF16", x.shape, to_bf16(x).tobytes())
                                for n, x in (("q", Q), ("k", K), ("v", V))})
    sirdar.ok("attend", "--q", "in.safetensors:q", "--k", "in.safetensors:k", "--v",
              "in.safetensors:v", "-o", "r.safetensors:out", "--lse", "r.safetensors:lse", "--check")
    found = load_raw_safetensors(sirdar.folder / "r.safetensors")
    assert found["out"][:2] == ("BF16", [B, SQ, HQ, DV])
    assert found["lse"][:2] == ("F32", [B, HQ, SQ])
    out = from_bf16(np.frombuffer(found["out"][2], np.uint16)).reshape(B, SQ, HQ, DV)
    forwards, _ = results_of(lambda b: {}, *(from_bf16(to_bf16(x)) for x in (Q, K, V)))
    close(out, stack(forwards, "out"), 2 ** -7)


def test_written_safetensors_open_with_their_own_package(sirdar):
    from safetensors.numpy import load_file
    sirdar.save(q=Q, k=K, v=V)
    sirdar.ok("attend", *INPUTS, "-o", "r.safetensors:a/b", "--lse", "r.safetensors:lse")
    found = load_file(sirdar.folder / "r.safetensors")
    forwards, _ = results_of(lambda b: {})
    close(found["a/b"], stack(forwards, "out"))
    # A later command writes the file anew: nothing of the old one stays.
    sirdar.ok("attend", *INPUTS, "-o", "r.safetensors:other")
    assert list(load_file(sirdar.folder / "r.safetensors")) == ["other"]


@pytest.mark.parametrize("change", [
    np.asfortranarray, lambda x: x.astype(">f4"),
    lambda x: np.asfortranarray(x.astype(">f4"))], ids=["fortran", "big-endian", "both"])
def test_other_orders_of_the_same_numbers(sirdar, change):
    sirdar.save(q=Q, k=K, v=V)
    sirdar.ok("attend", *INPUTS, "-o", "out.npy")
    plain = sirdar.load("out")
    sirdar.save(q=change(Q), k=change(K), v=change(V))
    sirdar.ok("attend", *INPUTS, "-o", "out.npy")
    np.testing.assert_array_equal(sirdar.load("out"), plain)


def test_masked_nan_has_no_effect(sirdar):
    k, v = K.copy(), V.copy()
    k[:, -1], v[:, -1] = np.nan, np.inf
    mask = np.ones((1, 1, 1, SK), bool)
    mask[..., -1] = False
    sirdar.save(q=Q, k=k, v=v, mask=mask)
    sirdar.ok("attend", *INPUTS, "--mask", "mask.npy", "-o", "out.npy", "--check")
    forwards = [formula.forward(Q[b], K[b, :-1], V[b, :-1]) for b in range(B)]
    close(sirdar.load("out"), stack(forwards, "out"))


def test_check_knows_what_infinite_scores_do_where_they_are_flat(sirdar):
    q = Q.copy()
    q[0, 1, 0, 3] = np.inf
    sirdar.save(q=q, k=K, v=V, dout=DOUT)
    # tanh of them is 1 or -1 and has no slope; the rows that are all finite must be right as well.
    for score_mod in ("tanh(score)", "k < 4 ? score : -inf"):
        sirdar.ok("attend", *INPUTS, *FORWARD, *BACKWARD, "--score-mod", score_mod, "--check")


@pytest.mark.parametrize("shape_q, shape_k", [((0, SQ), (0, SK)), ((B, 0), (B, SK)),
                                              ((B, SQ), (B, 0))])
def test_nothing_to_do_gives_files_of_the_right_shape(sirdar, shape_q, shape_k):
    q, k, v, dout = (np.ones((*s, h, d), np.float32) for s, h, d in (
        (shape_q, HQ, D), (shape_k, HKV, D), (shape_k, HKV, DV), (shape_q, HQ, DV)))
    sirdar.save(q=q, k=k, v=v, dout=dout)
    sirdar.ok("attend", *INPUTS, *FORWARD, *BACKWARD, "--check")
    assert sirdar.load("out").shape == dout.shape and not sirdar.load("out").any()
    assert sirdar.load("lse").shape == (shape_q[0], HQ, shape_q[1])
    assert np.isneginf(sirdar.load("lse")).all()
    assert sirdar.load("dk").shape == k.shape and not sirdar.load("dk").any()


def test_backends_threads_and_isas(sirdar):
    sirdar.save(q=Q, k=K, v=V)
    results = {}
    for name, flags in {"auto": [], "cpu": ["--backend", "cpu"], "one": ["--threads", "1"],
                        "reference": ["--backend", "reference"], "scalar": ["--isa", "scalar"]}.items():
        result = sirdar.ok("attend", *INPUTS, *flags, "-o", "out.npy", "--verbose")
        results[name] = (sirdar.load("out"), result.out)
    assert results["reference"][1].startswith("reference ")
    assert results["cpu"][1].startswith("cpu.forward ")
    assert "isa=scalar" in results["scalar"][1] and "isa=scalar" not in results["reference"][1]
    np.testing.assert_array_equal(results["one"][0], results["auto"][0])
    for out, _ in results.values():
        close(out, results["reference"][0])
