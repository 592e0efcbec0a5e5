"""sirdar.torch: values and every gradient against the definition in float64, and torch's own machinery."""

import contextlib
import multiprocessing
import os
from random import Random

import numpy as np
import pytest
import torch
import torch_formula
from torch.utils.checkpoint import checkpoint

import sirdar.compat.flash_attn
import sirdar.torch
from sirdar import _functions
from sirdar.torch import _ops
from torch_formula import close, shown


@pytest.fixture
def draw():
    generator = torch.Generator().manual_seed(5)

    def make(*shape, grad=True):
        return torch.randn(*shape, generator=generator).requires_grad_(grad)

    return make


@pytest.fixture
def qkv(draw):
    return draw(2, 5, 4, 16), draw(2, 7, 2, 16), draw(2, 7, 2, 24)


def gradients(results, inputs):
    """Of a sum in which every element of every result has a weight of its own."""
    total = sum(
        (r * torch.linspace(-1, 2, r.numel()).view(r.shape).to(r.dtype)).sum() for r in results
    )
    return torch.autograd.grad(total, inputs)


def test_every_gradient_is_that_of_the_definition(qkv, draw):
    bias, sink, slope = draw(1, 4, 5, 7), draw(4), draw(4)
    inputs = (*qkv, bias, sink, slope)
    actual = sirdar.torch.attention(
        *qkv, bias=bias, sink=sink, causal=True, softcap=3.0, softmax_scale=0.4,
        score_mod="score * slope[h]", tensors={"slope": slope}, return_lse=True,
    )  # fmt: skip
    wanted = torch_formula.attention(
        *qkv, bias=bias, sink=sink, visible=shown(5, 7, causal=True), softcap=3.0, scale=0.4,
        mod=lambda score: score * slope.double()[:, None, None],
    )  # fmt: skip
    for one, other in zip(actual, wanted, strict=True):
        close(one, other)
    for one, other in zip(gradients(actual, inputs), gradients(wanted, inputs), strict=True):
        assert one.dtype == torch.float32
        close(one, other, 2e-5)


def test_the_gradient_of_lse_alone(qkv):
    _, lse = sirdar.torch.attention(*qkv, return_lse=True)
    _, wanted = torch_formula.attention(*qkv)
    for one, other in zip(gradients([lse], qkv[:2]), gradients([wanted], qkv[:2]), strict=True):
        close(one, other)


def test_only_what_requires_a_gradient_gets_one(qkv, draw):
    q, k, v = (tensor.detach() for tensor in qkv)
    bias = draw(5, 7)
    sirdar.torch.attention(q, k, v, bias=bias).sum().backward()
    wanted = torch.autograd.grad(torch_formula.attention(q, k, v, bias=bias)[0].sum(), bias)[0]
    assert bias.grad.shape == (5, 7) and q.grad is None
    close(bias.grad, wanted)
    assert not sirdar.torch.attention(q, k, v).requires_grad


def test_ragged_batches_are_their_sequences(qkv, draw):
    lengths_q, lengths_k = [3, 0, 4], [5, 2, 6]
    q, k, v = draw(7, 4, 16), draw(13, 2, 16), draw(13, 2, 8)
    starts = [torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (lengths_q, lengths_k)]
    out, lse = sirdar.torch.attention_varlen(q, k, v, *starts, 4, 6, causal=True, return_lse=True)
    parts = []
    for rows, keys, values in zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k)):
        visible = shown(len(rows), len(keys), causal=True)
        parts.append(torch_formula.attention(rows[None], keys[None], values[None], visible=visible))
    wanted = (
        torch.cat([part[0][0] for part in parts]),
        torch.cat([part[1][0] for part in parts], -1),
    )
    close(out, wanted[0])
    close(lse, wanted[1])
    for one, other in zip(
        gradients([out], (q, k, v)), gradients(wanted[:1], (q, k, v)), strict=True
    ):
        close(one, other)


def test_dropout_follows_torchs_generator_and_is_the_same_backward(qkv):
    q, k, v = qkv
    keys = torch.eye(7).expand(2, 2, 7, 7).transpose(1, 2).contiguous().requires_grad_()
    torch.manual_seed(3)
    weights = sirdar.torch.attention(q, k, keys, dropout_p=0.4)
    torch.manual_seed(3)
    again = sirdar.torch.attention(q, k, keys, dropout_p=0.4)
    torch.manual_seed(4)
    other = sirdar.torch.attention(q, k, keys, dropout_p=0.4)
    assert torch.equal(weights, again) and not torch.equal(weights, other)
    factor = (weights.detach() != 0).transpose(1, 2) / 0.6  # with V = 1 the output is the weights
    wanted, _ = torch_formula.attention(q, k, keys, factor=factor)
    close(weights, wanted)
    inputs = (q, k, keys)
    for one, two in zip(gradients([weights], inputs), gradients([wanted], inputs), strict=True):
        close(one, two, 2e-5)


def test_checkpointing_draws_the_same_dropout(qkv):
    def run(wrap):
        torch.manual_seed(1)
        return gradients([wrap(lambda *a: sirdar.torch.attention(*a, dropout_p=0.3))], qkv)

    plain = run(lambda f: f(*qkv))
    for reentrant in (True, False):
        torch.manual_seed(1)
        q, k, v = (tensor.detach().requires_grad_() for tensor in qkv)
        out = checkpoint(
            lambda *a: sirdar.torch.attention(*a, dropout_p=0.3), q, k, v, use_reentrant=reentrant
        )
        (out * torch.linspace(-1, 2, out.numel()).view(out.shape)).sum().backward()
        for one, other in zip(plain, (q.grad, k.grad, v.grad), strict=True):
            assert torch.equal(one, other)


def test_backward_by_itself_honours_out_and_lse_of_a_larger_problem(qkv):
    q, k, v = (tensor.detach() for tensor in qkv)
    out, lse = sirdar.torch.attention(q, k, v, return_lse=True)
    dout = torch.ones_like(out)
    whole = sirdar.torch.backward(dout, q, k, v, out, lse)
    halves = [
        sirdar.torch.backward(dout, q, k[:, part], v[:, part], out, lse)
        for part in (slice(0, 3), slice(3, 7))
    ]
    close(halves[0][0] + halves[1][0], whole[0])
    for i in (1, 2):
        close(torch.cat([half[i] for half in halves], 1), whole[i])


@pytest.mark.parametrize("ragged", [False, True])
def test_partial_results_merge_with_gradients(qkv, ragged):
    q, k, v = (x[0] for x in qkv) if ragged else qkv
    options = {"return_lse": True}

    def keys(first, last):
        if ragged:
            starts = torch.tensor([0, 5]).int(), torch.tensor([0, last - first]).int()
            return sirdar.torch.attention_varlen(
                q, k[first:last], v[first:last], *starts, 5, last - first, **options
            )
        return sirdar.torch.attention(q, k[:, first:last], v[:, first:last], **options)

    parts, whole = (keys(0, 3), keys(3, 7)), keys(0, 7)
    merged = sirdar.torch.merge(*parts[0], *parts[1])
    for one, other in zip(
        (*merged, *gradients(merged, qkv)), (*whole, *gradients(whole, qkv)), strict=True
    ):
        close(one, other, 1e-5)
    # What sees no key is not read.
    nothing = torch.full_like(whole[0], torch.nan), torch.full_like(whole[1], -torch.inf)
    for is_first in (True, False):
        whole = keys(0, 7)
        made = sirdar.torch.merge(*((*whole, *nothing) if is_first else (*nothing, *whole)))
        assert torch.equal(made[0], whole[0]) and torch.equal(made[1], whole[1])
        assert all(torch.isfinite(x).all() for x in gradients(made, qkv))
    made = sirdar.torch.merge(*nothing, *nothing)
    assert made[0].eq(0).all() and made[1].eq(-torch.inf).all()
    with pytest.raises(ValueError, match="^out_a, out_b: are"):
        sirdar.torch.merge(whole[0], whole[1], whole[0].bfloat16(), whole[1])
    with pytest.raises(ValueError, match="^lse_b: is torch.float32 of shape"):
        sirdar.torch.merge(*whole, whole[0], whole[1].mT)


def test_what_merges_on_a_gpu_may_be_written_into(qkv):
    with torch.no_grad():
        out, lse = sirdar.torch.attention(*qkv, return_lse=True)
    arguments = {"out_a": out, "lse_a": lse, "out_b": out, "lse_b": lse}
    wanted = sirdar.merge(**arguments)
    made = torch.empty_like(out), torch.empty_like(lse)
    results = _functions._merge_on_gpu(torch, arguments, *made)
    for one, given, exact in zip(results, made, wanted):
        assert one is given
        close(one, exact)
    with pytest.raises(ValueError, match="^out: is torch.bfloat16"):
        _functions._merge_on_gpu(torch, arguments, out.bfloat16(), None)


@pytest.mark.parametrize("layout", ["dense", "modified", "ragged", "dropout"])
def test_opcheck(qkv, draw, layout):
    q, k, v = qkv
    none, options, bias, sink, tensors = [None] * 10, {"causal": True}, None, None, []
    if layout == "modified":
        bias, sink, tensors = draw(1, 4, 5, 7), draw(4), [draw(4)]
        options |= {"score_mod": "score * slope[h]", "names": "slope", "max_logit": True}
    elif layout == "dropout":
        none[-1] = torch.tensor([3, 4])
        options["dropout_p"] = 0.25
    elif layout == "ragged":
        q, k, v = draw(5, 4, 16), draw(7, 2, 16), draw(7, 2, 8)
        starts = (
            torch.tensor([0, 2, 5], dtype=torch.int32),
            torch.tensor([0, 3, 7], dtype=torch.int32),
        )
        none[2:4] = starts
        options |= {"seqlen_q": 3, "seqlen_k": 4}
    torch.library.opcheck(_ops.forward, (q, k, v, bias, sink, tensors, *none), options)
    out, lse, _ = _ops.forward(q, k, v, bias, sink, tensors, *none, **options)
    options.pop("max_logit", None)
    if tensors:
        options |= {"needs_dbias": True, "needs_dsink": True, "needs_dtensors": [0]}
    inputs = [None if t is None else t.detach() for t in (out, lse, q, k, v, bias, sink)]
    given = (
        torch.ones_like(out),
        torch.ones_like(lse),
        *inputs,
        [t.detach() for t in tensors],
        *none,
    )
    torch.library.opcheck(_ops.backward, given, options)


def test_compiled_whole_it_gives_the_same_bits_for_any_length(qkv, draw):
    def loss(q, k, v, bias):
        out, lse = sirdar.torch.attention(q, k, v, bias=bias, causal=True, return_lse=True)
        return out.sin().sum() + lse.sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for seqlen in (7, 9, 12):
        q, k, v, bias = (
            draw(2, seqlen, 4, 16),
            draw(2, seqlen, 2, 16),
            draw(2, seqlen, 2, 8),
            draw(seqlen),
        )
        inputs = (q, k, v, bias)
        eager = torch.autograd.grad(loss(*inputs), inputs)
        for one, other in zip(torch.autograd.grad(compiled(*inputs), inputs), eager, strict=True):
            assert torch.equal(one, other)


def test_autocast_converts_as_it_does_for_torchs_own(qkv):
    q, k, v = qkv
    with torch.autocast("cpu", torch.bfloat16):
        out = sirdar.torch.attention(q, k, v.bfloat16())
    assert out.dtype == torch.bfloat16
    close(out, torch_formula.attention(*qkv)[0], 0.05)
    assert gradients([out], qkv)[0].dtype == torch.float32


def test_vmap_and_its_gradients_are_loops(draw):
    q, k, v, bias = (
        draw(3, 2, 5, 4, 16),
        draw(2, 7, 2, 16),
        draw(3, 2, 7, 2, 8),
        draw(3, 1, 4, 5, 7),
    )

    def loss(q, k, v, bias):
        return sirdar.torch.attention(q, k, v, bias=bias, causal=True).sin().sum()

    function = torch.func.grad(loss, argnums=(0, 1, 2, 3))
    mapped = torch.func.vmap(function, in_dims=(0, None, 0, 0))(q, k, v, bias)
    for i in range(3):
        for one, other in zip(mapped, function(q[i], k, v[i], bias[i]), strict=True):
            close(one[i], other)


def test_what_differentiation_cannot_do_is_refused(qkv):
    q, k, v = qkv
    (dq,) = torch.autograd.grad(sirdar.torch.attention(*qkv).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        torch.autograd.grad(dq.sum(), q)
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.jvp(lambda q: sirdar.torch.attention(q, k, v), (q.detach(),), (q.detach(),))
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.hessian(lambda q: sirdar.torch.attention(q, k, v).sum())(q.detach())
    with pytest.raises(NotImplementedError, match="^dropout_p"):
        torch.func.vmap(lambda q: sirdar.torch.attention(q, k, v, dropout_p=0.5))(q[None])
    with pytest.raises(NotImplementedError, match="tensors"):
        torch.func.vmap(
            lambda q: sirdar.torch.attention(
                q, k, v, score_mod="score * t[0]", tensors={"t": torch.ones(1)}
            )
        )(q[None])


def test_bad_input_is_refused_with_a_sentence(qkv):
    q, k, v = qkv
    slopes = torch.ones(4, requires_grad=True)
    table = torch.zeros(2, 1, dtype=torch.int32)
    cases = [
        (TypeError, "q: a ndarray", lambda: sirdar.torch.attention(q.detach().numpy(), k, v)),
        (
            NotImplementedError,
            "k: is a torch.sparse_coo",
            lambda: sirdar.torch.attention(q, k.detach().to_sparse(), v),
        ),
        (
            NotImplementedError,
            "v: is a nested",
            lambda: sirdar.torch.attention(q, k, torch.nested.nested_tensor([v[0]])),
        ),
        (
            NotImplementedError,
            "q: is a nested",
            lambda: sirdar.torch.attention(torch.nested.nested_tensor([*q]), k, v),
        ),
        (
            NotImplementedError,
            "k: is a nested",
            lambda: sirdar.torch.attention(q, torch.nested.nested_tensor([*k]), v, causal=True),
        ),
        (
            NotImplementedError,
            "q: lies on the meta",
            lambda: sirdar.torch.attention(q.to("meta"), k, v),
        ),
        (ValueError, "have dtypes", lambda: sirdar.torch.attention(q, k, v.bfloat16())),
        (TypeError, "float64", lambda: sirdar.torch.attention(q.double(), k.double(), v.double())),
        (
            ValueError,
            "alibi: requires a gradient",
            lambda: sirdar.torch.attention(q, k, v, alibi=slopes),
        ),
        (
            ValueError,
            "bias: has 5 axes",
            lambda: sirdar.torch.attention(q, k, v, bias=torch.zeros(1, 1, 1, 1, 7)),
        ),
        (ValueError, "head", lambda: sirdar.torch.attention(q, k[:, :, :, :8], v)),
        (ValueError, "rank", lambda: sirdar.torch.attention(q[0], k, v)),
        (ValueError, "dropout_p", lambda: sirdar.torch.attention(q, k, v, dropout_p=1.5)),
        (
            NotImplementedError,
            "page_table",
            lambda: sirdar.torch.attention(q, k, v, page_table=table),
        ),
        (TypeError, "nonsense", lambda: sirdar.torch.backward(q, q, k, v, q, q, nonsense=1)),
    ]
    for kind, words, call in cases:
        with pytest.raises(kind, match=words) as error:
            call()
        assert str(error.value).endswith(".") and "\n" not in str(error.value)


def test_a_number_that_wants_a_gradient_is_refused(qkv):
    c = torch.tensor(0.7, requires_grad=True)
    attention, sdpa = sirdar.torch.attention, sirdar.torch.scaled_dot_product_attention
    q, k, v = (tensor.detach().transpose(1, 2) for tensor in qkv)
    flash = sirdar.compat.flash_attn.flash_attn_func
    calls = {
        r"scalars\['c'\]: .*tensors=\{\"c\": c.reshape\(1\)\}": lambda c: attention(
            *qkv, score_mod="score * c", scalars={"c": c}
        ),
        "softmax_scale: .*multiply q": lambda c: attention(*qkv, softmax_scale=c),
        "softcap: .*tanh": lambda c: attention(*qkv, softcap=c),
        "softmax_scale: .*": lambda c: flash(*qkv, softmax_scale=c),
        "softcap: .*": lambda c: flash(*qkv, softcap=c.reshape(1)),
        "dropout_p: .*": lambda c: attention(*qkv, dropout_p=c),
        "scale: .*multiply query": lambda c: sdpa(q, k, v, scale=c, enable_gqa=True),
        "scale: .*query by it": lambda c: sdpa(q[0, 0], k[0, 0], v[0, 0], scale=c),
    }
    for words, call in calls.items():
        with pytest.raises(ValueError, match=f"^{words}") as error:
            call(c)
        assert str(error.value).endswith("detach() it.")
        call(c.detach())  # a number like another
        with torch.no_grad():
            assert not call(c).requires_grad
    with pytest.raises(ValueError, match="^softmax_scale: is a tensor that requires"):
        torch.func.jvp(lambda c: attention(q, k, v, softmax_scale=c), (c.detach(),), (c.detach(),))
    with pytest.raises(ValueError, match="^softmax_scale: is a tensor that requires"):
        torch.func.grad(lambda c: attention(*qkv, softmax_scale=c).sum())(c.detach())


def test_a_number_in_a_tensor_is_read_at_every_call(qkv):
    scale = torch.tensor(0.5)
    sirdar.torch.attention(*qkv, softmax_scale=scale)
    scale.fill_(2.0)
    assert torch.equal(
        sirdar.torch.attention(*qkv, softmax_scale=scale),
        sirdar.torch.attention(*qkv, softmax_scale=2.0),
    )
    with pytest.raises(ValueError, match="^softmax_scale: is a tensor of shape"):
        sirdar.torch.attention(*qkv, softmax_scale=torch.ones(2))


def test_dropout_rng_is_checked(qkv):
    for bad in (
        torch.tensor([1, 2, 3]), torch.tensor(1), (1, 2), torch.tensor([1.0, 2.0]), torch.ones(2).int(),
        torch.tensor([-1, 2]), torch.tensor([1, -2]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"^dropout_rng: [^\n]*\.$"):
            sirdar.torch.attention(*qkv, dropout_p=0.5, dropout_rng=bad)
    good = torch.tensor([1, 2])
    out, lse = sirdar.torch.attention(*qkv, dropout_p=0.5, dropout_rng=good, return_lse=True)
    with pytest.raises(ValueError, match="^dropout_rng: is torch.float32"):
        sirdar.torch.backward(out, *qkv, out, lse, dropout_p=0.5, dropout_rng=good.float())
    for call in (
        lambda: sirdar.torch.attention(*qkv, dropout_rng=good),
        lambda: sirdar.torch.backward(out, *qkv, out, lse, dropout_rng=good),
    ):
        with pytest.raises(ValueError, match="^dropout_rng: is given and dropout_p is 0"):
            call()


def test_what_expressions_read_is_a_dict_of_names(qkv):
    for bad, kind in (([torch.ones(1)], TypeError), ({1: torch.ones(1)}, TypeError),
                      ({"a,b": torch.ones(1)}, ValueError), (torch.ones(2), TypeError)):  # fmt: skip
        for name in ("tensors", "scalars"):
            with pytest.raises(kind, match=rf"^{name}: [^\n]*\.$"):
                sirdar.torch.attention(*qkv, score_mod="score", **{name: bad})
    with pytest.raises(TypeError, match="^tensors: a list was given"):
        sirdar.torch.attention(*qkv, score_mod="score * t[0]", tensors={"t": [1.0]})
    with pytest.raises(TypeError, match=r"^scalars\['c'\]: 'x' is not a number"):
        sirdar.torch.attention(*qkv, score_mod="score * c", scalars={"c": "x"})


def test_torchs_own_threads_compute(qkv):
    executor = sirdar._threads.executor_of(sirdar._tensor.kind_of(qkv[0], "q"))
    assert executor is not None  # this torch works with OpenMP
    q, k, v = (torch.randn(1, 300, 8, 16) for _ in range(3))
    before, results = torch.get_num_threads(), []
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        results.append(sirdar.torch.attention(q, k, v))
    torch.set_num_threads(before)
    assert torch.equal(*results)
    assert (
        (
            sirdar.torch.attention(q, k, v)
            - torch.from_numpy(sirdar.attention(q.numpy(), k.numpy(), v.numpy()))
        )
        .eq(0)
        .all()
    )


def test_a_copied_input_does_not_decide_the_outputs_strides(draw):
    """A q whose last axis is strided is copied, and the copy is known from a contiguous q before."""
    contiguous = draw(2, 6, 4, 16, grad=False)
    strided = draw(2, 4, 6, 32, grad=False)[..., ::2].transpose(1, 2)
    for q in (contiguous, strided, contiguous, strided):
        close(sirdar.attention(q, q, q), torch_formula.attention(q, q, q)[0])
        close(sirdar.torch.attention(q, q, q), torch_formula.attention(q, q, q)[0])


def test_a_parameter_whose_last_axis_is_strided(draw):
    """Its copy is no Parameter; the output lies as the library was told."""
    contiguous = draw(2, 6, 4, 16, grad=False)
    strided = torch.nn.Parameter(draw(2, 6, 16, 4, grad=False).transpose(2, 3), requires_grad=False)
    for q in (contiguous, strided):
        close(sirdar.attention(q, contiguous, contiguous), torch_formula.attention(q, contiguous, contiguous)[0])
        close(sirdar.torch.attention(q, contiguous, contiguous), torch_formula.attention(q, contiguous, contiguous)[0])


@pytest.mark.parametrize("hook_comes_first", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_hooks_may_keep_copies_that_lie_otherwise(hook_comes_first, masked):
    """Of slices of one tensor, and of a mask that is expanded."""
    packed = torch.randn(2, 9, 3, 4, 16, generator=torch.Generator().manual_seed(1))
    mask = torch.randn(9, 1).expand(9, 9) if masked else None
    copies = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor.clone(memory_format=torch.contiguous_format), lambda tensor: tensor
    )

    def gradients(function, hook):
        leaf = packed.clone().requires_grad_()
        q, k, v = (x.transpose(1, 2) for x in leaf.unbind(2))
        with hook:
            out = function(q, k, v, attn_mask=mask)
        return torch.autograd.grad(out.square().sum(), leaf)[0]

    wanted = gradients(torch.nn.functional.scaled_dot_product_attention, contextlib.nullcontext())
    hooks = [copies, contextlib.nullcontext()] if hook_comes_first else [contextlib.nullcontext(), copies]
    for hook in (*hooks, contextlib.nullcontext()):
        close(gradients(sirdar.torch.scaled_dot_product_attention, hook), wanted)


def any_layout(shape, random):
    """The same shape lying in memory in one of many ways."""
    order = list(range(4))
    random.shuffle(order)
    place = [order.index(axis) for axis in range(4)]
    return random.choice(
        [
            lambda: torch.randn(shape),
            lambda: torch.randn([shape[axis] for axis in order]).permute(place),
            lambda: torch.randn(*shape[:3], 2 * shape[3])[..., ::2],
            lambda: torch.randn(*shape[:2], 1, shape[3]).expand(shape),
            lambda: torch._neg_view(torch.randn(shape)),
            lambda: torch.randn(shape[0], shape[1] + 1, *shape[2:])[:, 1:],
        ]
    )()


def test_what_one_call_leaves_behind_does_not_change_another():
    """Plans, layouts and makers of outputs are kept for what looks alike: few shapes, many layouts, three doors."""
    random = Random(0)
    torch.manual_seed(6)
    for _ in range(80):
        rows, keys = 5, random.choice([5, 6])
        shapes = (2, rows, 2, 16), (2, keys, 2, 16), (2, keys, 2, 16)
        strange = random.randrange(3)  # one, so that the same combinations come again
        q, k, v = (
            any_layout(shape, random) if i == strange else torch.randn(shape)
            for i, shape in enumerate(shapes)
        )
        causal, alignment = random.random() < 0.5, random.choice(["top_left", "bottom_right"])
        options = {"causal": True, "alignment": alignment} if causal else {}
        visible = shown(rows, keys, causal, shift=0 if alignment == "top_left" else None)
        wanted, _ = torch_formula.attention(q, k, v, visible=visible)
        close(sirdar.attention(q, k, v, **options), wanted)
        close(sirdar.plan(q, k, v, **options)(q, k, v), wanted)
        leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        out = sirdar.torch.attention(*leaves, **options)
        close(out, wanted)
        wide = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
        dout = any_layout(out.shape, random)
        for one, other in zip(
            torch.autograd.grad(out, leaves, dout),
            torch.autograd.grad(
                torch_formula.attention(*wide, visible=visible)[0], wide, dout.double()
            ),
        ):
            close(one, other, 2e-5)


def test_an_alignment_without_effect_is_refused_by_the_short_way_too(draw):
    q = draw(1, 5, 2, 16)
    sirdar.torch.attention(q, q, q)
    with pytest.raises(ValueError, match="^alignment: top_left has no effect"):
        sirdar.torch.attention(q, q, q, alignment="top_left")


def test_a_forked_child_computes():
    q = torch.randn(1, 300, 8, 16)
    wanted = sirdar.torch.attention(q, q, q)

    def child():  # no other work of torch there: its OpenMP does not survive a fork
        out = sirdar.torch.attention(q, q, q)
        os._exit(0 if out.numpy().tobytes() == wanted.numpy().tobytes() else 1)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    code = process.exitcode
    process.kill()
    assert code == 0


def test_flags_are_flags(qkv):
    q, k, v = (tensor.detach() for tensor in qkv)
    for name in ("return_lse", "return_max_logit", "deterministic", "causal"):
        for value in (2, "x", None, [1]):
            with pytest.raises(
                TypeError, match=rf"^{name}: .* is not a flag; pass True or False\.$"
            ):
                sirdar.torch.attention(q, k, v, **{name: value})
    wanted = sirdar.torch.attention(q, k, v, return_lse=True, return_max_logit=True)
    yes = np.True_
    given = sirdar.torch.attention(
        q, k, v, return_lse=yes, return_max_logit=yes, deterministic=yes, causal=np.False_
    )
    for one, other in zip(given, wanted, strict=True):
        assert torch.equal(one, other)
    assert isinstance(sirdar.torch.attention(q, k, v, return_lse=np.False_), torch.Tensor)
