"""What is refused, as which exception, with one sentence; and that nothing is written then."""

import numpy as np
import pytest
import sirdar


@pytest.fixture
def qkv(random):
    return random(2, 5, 4, 16), random(2, 7, 2, 16), random(2, 7, 2, 16)


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


ILLEGAL = [
    # options, exception, what the sentence says
    (dict(softmax_scale=float("nan")), ValueError, "softmax_scale: nan is not finite"),
    (dict(softmax_scale="2"), TypeError, "softmax_scale: '2' is not a number"),
    (dict(softmax_scale=1e39), ValueError, "softmax_scale"),
    (dict(softcap=-1), ValueError, "softcap"),
    (dict(causal=2), TypeError, "causal: 2 is not a flag"),
    (dict(causal="yes"), TypeError, "causal: 'yes' is not a flag"),
    (dict(window_left=-1), ValueError, "window_left"),
    (dict(window_left=1.5), TypeError, "window_left: 1.5 is not a whole number"),
    (dict(window_right=2**80), ValueError, "window_right"),
    (dict(chunk_size=-3), ValueError, "chunk_size"),
    (dict(alignment="top_left"), ValueError, "alignment"),
    (dict(causal=True, alignment="left"), ValueError, "alignment: 'left' is not one of"),
    (dict(document_q=ones(2, 5, dtype=np.int32)), ValueError, "document_k: it is missing"),
    (dict(mask=ones(5, 7)), ValueError, "mask: dtype fp32"),
    (dict(mask=ones(6, 7, dtype=bool)), ValueError, "mask: shape"),
    (dict(bias=ones(1, 1, 2, 4, 5, 7)), ValueError, "bias: shape [1, 1, 2, 4, 5, 7] has rank 6"),
    (dict(bias=ones(5, 7, dtype=np.float64)), TypeError, "bias: dtype float64 is none of"),
    (dict(alibi=ones(3)), ValueError, "alibi: shape"),
    (dict(sink=ones(4, 1)), ValueError, "sink: shape"),
    (dict(sink=[1.0, 2.0, 3.0, 4.0]), TypeError, "sink: list is not an array"),
    (dict(seqused_k=np.array([8, 1], np.int32)), ValueError, "seqused_k"),
    (dict(seqused_k=np.array([7, 1])), ValueError, "seqused_k: dtype int64"),
    (dict(seqlen_k=7), ValueError, "seqlen_k: it is given although the shapes tell it"),
    (dict(dropout_p=1.0), ValueError, "dropout_p"),
    (dict(dropout_seed=1), ValueError, "dropout_seed"),
    (dict(dropout_p=0.1, dropout_seed=-1), ValueError, "dropout_seed: -1 is not from 0"),
    (dict(dropout_p=0.1, dropout_seed=1.5), TypeError, "dropout_seed: 1.5 is not a whole number"),
    (dict(dtype_out="fp64"), ValueError, "dtype_out: 'fp64' is not one of"),
    (dict(dtype_out="bf16"), ValueError, "dtype_out"),
    (dict(dtype_out="bf16", out=ones(2, 5, 4, 16)), ValueError, "out has dtype fp32"),
    (dict(dtype_out=3, out=ones(2, 5, 4, 16)), ValueError, "dtype_out: 3 is not one of"),
    (dict(return_lse=ones(2)), TypeError, "is not a flag"),
    (dict(return_max_logit="no"), TypeError, "return_max_logit: 'no' is not a flag"),
    (dict(score_mod="score +"), ValueError, "score_mod: column"),
    (dict(score_mod="score\0"), ValueError, "score_mod: it holds a zero byte"),
    (dict(score_mod="score + s[h]"), ValueError, "unknown name 's'"),
    (dict(score_mod="score", tensors={"s": ones(4)}), ValueError, "'s' is read by neither"),
    (dict(tensors={"s": ones(4)}), ValueError, "no expression could read it"),
    (dict(tensors=[ones(4)]), TypeError, "tensors: list is not a dict"),
    (
        dict(score_mod="score * c", scalars={"c": "x"}),
        TypeError,
        "scalars['c']: 'x' is not a number",
    ),
    (dict(score_mod="score + s[h]", tensors={"s": ones(4, dtype=np.int64)}), ValueError, "int64"),
    (dict(implementation="fast"), ValueError, "implementation: 'fast' is not an implementation"),
    (dict(implementation="cpu.backward"), NotImplementedError, "cpu.backward"),
    (dict(num_threads=-1), ValueError, "num_threads"),
    (dict(num_threads=2**40), ValueError, "num_threads"),
    (dict(isa="sse"), ValueError, "isa"),
    (dict(knobs={"no_such": 1}), ValueError, "no_such"),
    (dict(page_table=ones(2, 3, dtype=np.int32)), ValueError, "seqused_k"),
    (
        dict(cu_seqlens_q=np.array([0, 5], np.int32)),
        ValueError,
        "q: shape [2, 5, 4, 16] has rank 4",
    ),
]


def is_one_sentence(text):
    return "\n" not in text and text.endswith((".", ")")) or "column" in text


@pytest.mark.parametrize("options, kind, part", ILLEGAL, ids=[part for _, _, part in ILLEGAL])
def test_an_illegal_argument_is_named_and_nothing_is_written(options, kind, part, qkv):
    out = np.full((2, 5, 4, 16), 7, np.float32)
    lse = np.full((2, 4, 5), 7, np.float32)
    if "dtype_out" not in options and "return_lse" not in options:
        options = dict(options, out=out, lse=lse)
    with pytest.raises(kind) as error:
        sirdar.attention(*qkv, **options)
    assert type(error.value) is kind
    assert part in str(error.value), str(error.value)
    assert is_one_sentence(str(error.value)), str(error.value)
    assert (out == 7).all() and (lse == 7).all()


ARRAYS = [
    (lambda q, k, v: (q[0], k, v), ValueError, "q: shape [5, 4, 16] has rank 3"),
    (lambda q, k, v: (q, k[..., 0], v), ValueError, "k: shape [2, 7, 2] has rank 3"),
    (lambda q, k, v: (q, k[:1], v), ValueError, "k: shape [1, 7, 2, 16] does not fit"),
    (lambda q, k, v: (q, k, v[:, :6]), ValueError, "v: shape [2, 6, 2, 16] does not fit"),
    (lambda q, k, v: (q[:, :, :3], k, v), ValueError, "num_heads_q"),
    (lambda q, k, v: (q, k[..., :8], v), ValueError, "k: shape"),
    (
        lambda q, k, v: (q.astype(np.float16), k, v),
        ValueError,
        "k: dtype fp32 differs from q's fp16; convert",
    ),
    (lambda q, k, v: (q, k, v.astype(np.float16)), ValueError, "v: dtype fp16 does not fit"),
    (lambda q, k, v: (q.astype(np.float64), k, v), TypeError, "q: dtype float64 is none of"),
    (lambda q, k, v: (q.astype(">f4"), k, v), TypeError, "q: dtype >f4 is none of"),
    (lambda q, k, v: (q.tolist(), k, v), TypeError, "q: list is not an array"),
    (lambda q, k, v: (q, None, v), TypeError, "k: it is None"),
    (lambda q, k, v: (q, np.ma.masked_array(k, k > 0), v), TypeError, "k: a masked array's mask"),
    (lambda q, k, v: (q, k, v[..., :0]), ValueError, "v: its last axis"),
    (lambda q, k, v: (q[..., :0], k[..., :0], v), ValueError, "head_dim"),
]


@pytest.mark.parametrize("change, kind, part", ARRAYS, ids=[part for _, _, part in ARRAYS])
def test_arrays_that_do_not_fit_are_named(change, kind, part, qkv):
    with pytest.raises(kind) as error:
        sirdar.attention(*change(*qkv))
    assert part in str(error.value), str(error.value)
    assert is_one_sentence(str(error.value)), str(error.value)


def test_a_plan_checks_every_call(qkv):
    q, k, v = qkv
    plan = sirdar.plan(q, k, v)
    for arrays in ((q[:, :3], k, v), (q, k[:, :3], v), (q[..., :8], k, v), (q[0, 0, 0], k, v)):
        with pytest.raises(ValueError):
            plan(*arrays)
    with pytest.raises(ValueError, match="mask: it is given although"):
        plan(q, k, v, mask=np.ones((1, 1, 5, 7), bool))
    with pytest.raises(TypeError, match="no such argument"):
        plan(q, k, v, causal=True)
    read_only = np.zeros((2, 5, 4, 16), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="out: the array is read-only"):
        plan(q, k, v, out=read_only)


def test_what_an_earlier_call_brought_is_not_there_in_the_next(qkv):
    q, k, v = qkv
    mask = np.ones((1, 1, 5, 7), bool)
    plan = sirdar.plan(q, k, v, mask=mask)
    plan(q, k, v, mask=mask)
    with pytest.raises(ValueError, match="mask: it is missing"):
        plan(q, k, v)


def test_outputs_may_not_share_memory(qkv):
    q, k, v = qkv
    with pytest.raises(ValueError, match="shares memory"):
        sirdar.attention(q, k, v, out=q)
    with pytest.raises(ValueError, match="stride"):
        sirdar.attention(q, k, v, out=np.zeros((2, 5, 4, 32), np.float32)[..., ::2])


def test_problem_strings_are_checked():
    with pytest.raises(ValueError, match="column"):
        sirdar.plan("fwd s8 causall")
    with pytest.raises(ValueError, match="device"):
        sirdar.plan("fwd s8", device="tpu")
    with pytest.raises(TypeError, match="a problem string says it itself"):
        sirdar.plan("fwd s8", causal=True)
    with pytest.raises(NotImplementedError) as error:
        sirdar.plan("bwd s8 causal", implementation="cpu.forward")
    assert "cpu.forward" in str(error.value)


def test_ragged_batches_are_checked(random):
    q = random(9, 4, 16)
    good = np.array([0, 4, 9], np.int32)
    for bad, part in (
        (np.array([1, 4, 9], np.int32), "cu_seqlens_q"),
        (np.array([0, 10, 9], np.int32), "cu_seqlens_q"),
        (np.array([0, 4, 8], np.int32), "cu_seqlens_q"),
        (np.array([0, 4, 9]), "cu_seqlens_q: dtype int64"),
        (np.array([[0, 4, 9]], np.int32), "cu_seqlens_q: shape"),
    ):
        with pytest.raises(ValueError) as error:
            sirdar.attention_varlen(q, q, q, bad, good)
        assert part in str(error.value)
    with pytest.raises(ValueError, match="cu_seqlens_k"):
        sirdar.attention_varlen(q, q, q, good, np.array([0, 4], np.int32))
    with pytest.raises(ValueError, match="seqlen_q|cu_seqlens_q"):
        sirdar.attention_varlen(q, q, q, good, good, seqlen_q=3)


def test_the_backward_pass_names_what_is_missing(qkv):
    out, lse = sirdar.attention(*qkv, return_lse=True)
    with pytest.raises(TypeError, match="lse: it is None"):
        sirdar.backward(out, *qkv, out, None)
    with pytest.raises(ValueError, match="bias"):
        sirdar.backward(out, *qkv, out, lse, needs_dbias=True)
    with pytest.raises(ValueError, match="'s' is none of tensors"):
        sirdar.backward(out, *qkv, out, lse, needs_dtensors=("s",))
    with pytest.raises(ValueError, match="dout: shape"):
        sirdar.backward(out[:, :2], *qkv, out, lse)


def test_tensors_of_torch_that_are_no_plain_memory(qkv):
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(array) for array in qkv)
    cases = [
        (q.clone().requires_grad_(), ValueError, "q: it requires a gradient"),
        (q.to("meta"), NotImplementedError, "q: a tensor of device 'meta'"),
        (q.to_sparse(), NotImplementedError, "layout torch.sparse_coo"),
        (torch.nested.nested_tensor([q[0], q[1]]), NotImplementedError, "a nested tensor"),
        (
            torch.nested.nested_tensor([q[0], q[1]], layout=torch.jagged),
            NotImplementedError,
            "nested",
        ),
        (q.double(), TypeError, "q: dtype torch.float64 is none of"),
        (q.to(torch.complex64), TypeError, "q: dtype torch.complex64"),
    ]
    with torch._subclasses.fake_tensor.FakeTensorMode():
        cases.append((torch.ones(2, 5, 4, 16), NotImplementedError, "without memory of its own"))
    for tensor, kind, part in cases:
        with pytest.raises(kind) as error:
            sirdar.attention(tensor, k, v)
        assert part in str(error.value), str(error.value)
        assert is_one_sentence(str(error.value)), str(error.value)
    with torch.no_grad():
        assert sirdar.attention(cases[0][0], k, v).shape == q.shape


def test_arrays_of_jax_are_never_written_to_nor_traced(qkv):
    jax = pytest.importorskip("jax")
    arrays = [jax.numpy.asarray(array) for array in qkv]
    with pytest.raises(TypeError, match="cannot be written to"):
        sirdar.attention(*arrays, out=arrays[0])
    with pytest.raises(TypeError, match="sirdar.jax"):
        jax.jit(sirdar.attention)(*arrays)


class Producer:
    """Something that says that it has DLPack."""

    def __init__(self, capsule, device=(1, 0)):
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **_):
        return self.capsule()

    def __dlpack_device__(self):
        return self.device


def read_only(like):
    array = np.zeros_like(like)
    array.flags.writeable = False
    return Producer(array.__dlpack__)


def used(like):
    capsule = like.__dlpack__()
    np.from_dlpack(Producer(lambda: capsule))
    return capsule


@pytest.mark.parametrize(
    "call, kind, part",
    [
        (lambda q, k, v: sirdar.plan(q, k, v.astype(np.float16)), ValueError, "v: dtype fp16 does not fit"),
        (lambda q, k, v: sirdar.plan(q[:0], k, v), ValueError, "k: shape [2, "),
        (lambda q, k, v: sirdar.plan(q, k, v[:, :3]), ValueError, "v: shape [2, 3, "),
        (lambda q, k, v: sirdar.plan(q, k[..., :8], v), ValueError, "k: shape [2, "),
        (lambda q, k, v: sirdar.plan(q, k, v, bias=ones(3)), ValueError, "bias: shape [1, 1, 1, 3] does not fit"),
        (lambda q, k, v: sirdar.plan(q, q=q, k=k, v=v), TypeError, "q: it is given twice"),
        (lambda q, k, v: sirdar.plan("fwd s8", device=[1]), TypeError, "device: [1] is no text"),
        (lambda q, k, v: sirdar.explain(), TypeError, "q: NoneType is not an array"),
        (lambda q, k, v: sirdar.selftest("tpu"), ValueError, "device: 'tpu' is none of"),
        (lambda q, k, v: sirdar.backward(q, q, k, v, q, q, needs_dtensors=3), TypeError, "needs_dtensors: 3 is no list"),
        (lambda q, k, v: sirdar.plan(q, k, v, out="nonsense"), TypeError, "out: str is not an array"),
        (lambda q, k, v: sirdar.plan("fwd s10", q, q), TypeError, "k, v: a problem string"),
        (lambda q, k, v: sirdar.attention(q, k, v, dropout_p=0.5, dropout_seed=None), TypeError, "dropout_seed: None"),
        (lambda q, k, v: sirdar.attention(q, k, v, dropout_p=0.5, dropout_offset=0.0), TypeError, "dropout_offset: 0.0"),
        (lambda q, k, v: sirdar.attention(q, k, v, knobs=[1]), TypeError, "knobs: list is not a dict"),
        (lambda q, k, v: sirdar.attention(q, k, v, scalars=["c"]), TypeError, "scalars: list is not a dict"),
        (lambda q, k, v: sirdar.attention(q, k, v, scalars=[]), TypeError, "scalars: list is not a dict"),
        (lambda q, k, v: sirdar.attention(q, k, v, tensors=q), TypeError, "tensors: ndarray is not a dict"),
        (lambda q, k, v: sirdar.attention(q, k, v, score_mod=lambda score: score, tensors=[q]), TypeError, "tensors: list"),
        (lambda q, k, v: sirdar.backward(q, q, k, v, q, q, scalars=["c"]), TypeError, "scalars: list"),
        (lambda q, k, v: sirdar.plan(q, k, v, scalars=["c"]), TypeError, "scalars: list is not a dict"),
        (lambda q, k, v: sirdar.plan(q, k, v)(q, k, v, scalars=["c"]), TypeError, "scalars: list is not a dict"),
        (lambda q, k, v: sirdar.plan("\ud800"), ValueError, "problem: it holds half of a surrogate"),
        (lambda q, k, v: sirdar.attention(q, k, v, score_mod="\ud800"), ValueError, "score_mod: it holds half"),
        (lambda q, k, v: sirdar.decode(q[:, 0], k, v, out=[]), TypeError, "out: list is not an array"),
        (lambda q, k, v: sirdar.decode(q[:, 0], k, v, out=q), ValueError, "out: shape [2, 5, 4, 16] does not fit"),
        (lambda q, k, v: sirdar.attention(Producer(lambda: 1), k, v), TypeError, "q: its __dlpack__()"),
        (lambda q, k, v: sirdar.attention(Producer(lambda: used(q)), k, v), TypeError, "q: its __dlpack__()"),
        (lambda q, k, v: sirdar.attention(Producer(lambda: 1 / 0), k, v), ValueError, "q: its memory is not given"),
        (lambda q, k, v: sirdar.attention(Producer(q.__dlpack__, 7), k, v), TypeError, "q: its __dlpack_device__()"),
        (lambda q, k, v: sirdar.attention(Producer(np.zeros((1,) * 6).__dlpack__), k, v), ValueError, "it 6 axes"),
        (lambda q, k, v: sirdar.attention(q, k, v, out=read_only(q)), ValueError, "out: its memory is not given"),
        (lambda q, k, v: sirdar.attention(q, k, v, mask=ones(5, 7, dtype=np.uint8)), TypeError, "uint8 is not boolean"),
        (lambda q, k, v: sirdar.attention(q, k, v, sink=np.zeros(4)), TypeError, "float64 is not fp32"),
        (lambda q, k, v: sirdar.plan("bwd b1 sq4 sk4 hq1 hkv1 d16 fp32 dbias"), ValueError, "pass bias"),
    ],
)  # fmt: skip
def test_what_is_given_wrongly_is_one_sentence(call, kind, part, qkv):
    with pytest.raises(kind) as error:
        call(*qkv)
    assert type(error.value) is kind
    assert part in str(error.value), str(error.value)
    assert is_one_sentence(str(error.value)), str(error.value)


def test_a_refused_dtype_names_what_the_argument_takes(qkv):
    """No sentence names a dtype that is refused there in turn."""
    for options, name in ((dict(bias=ones(5, 7, dtype=np.float64)), "bias"), ({}, "q")):
        q = qkv[0] if options else qkv[0].astype(np.float64)
        with pytest.raises(TypeError, match=f"^{name}: dtype float64") as error:
            sirdar.attention(q, *qkv[1:], **options)
        assert "int" not in str(error.value) and "boolean" not in str(error.value)


def test_knobs_that_are_bools_reach_the_library_as_it_reads_them():
    options = sirdar._problem.OPTIONS | {
        "knobs": {"a": True, "b": np.False_, "c": 64, "d": "True"}
    }
    given, _keep = sirdar._problem.plan_options_from(options, "")
    values = [given.knobs[i].value for i in range(given.num_knobs)]
    assert values == [b"true", b"false", b"64", b"True"]
