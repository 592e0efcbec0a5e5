"""FlashAttention's operators by name, and the modules that its releases install."""

import importlib.util
import inspect

import pytest
import torch
import torch_formula
from torch._subclasses import FakeTensorMode
from torch_formula import close, shown

import sirdar.compat
from sirdar.compat import flash_attn, flash_attn_interface as fa3
from sirdar.compat.flash_attn import flash_attn_interface as fa2


@pytest.fixture(autouse=True)
def installed():
    sirdar.compat.install()
    yield
    sirdar.compat.uninstall()


@pytest.fixture
def draw():
    generator = torch.Generator().manual_seed(5)
    return lambda *shape: torch.randn(*shape, generator=generator)


# The arguments after the tensors: dropout_p, scale, causal, window, softcap, alibi_slopes.
MASKS = (0.0, 0.25, True, 3, -1, 2.0, None)
STARTS = torch.tensor([0, 3, 10]).int()


def wanted(q, k, v, leaves=()):
    visible = shown(q.shape[1], k.shape[1], causal=True, left=3)
    return torch_formula.attention(q, k, v, scale=0.25, softcap=2.0, visible=visible)


def test_padded(draw):
    operators = torch.ops.flash_attn
    q, k, v, dout = draw(2, 5, 4, 16), draw(2, 7, 2, 16), draw(2, 7, 2, 16), draw(2, 5, 4, 16)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    one, two = wanted(*leaves)
    one.backward(dout.double())
    given = (q, k, v, *MASKS, False)
    out, lse, weights, rng = operators._flash_attn_forward(*given)
    close(out, one)
    close(lse, two)
    assert weights.numel() == 0 and rng.shape == (2,) and rng.dtype == torch.int64
    grads = [torch.full_like(x, torch.nan) for x in (q, k, v)]
    back = (dout, q, k, v, out, lse, *grads, *MASKS, True)
    product = operators._flash_attn_backward(*back)
    close(product, (dout.double() * out).sum(-1).transpose(1, 2))
    for grad, leaf in zip(grads, leaves):
        close(grad, leaf.grad, 2e-5)
    torch.library.opcheck(operators._flash_attn_forward.default, given)
    torch.library.opcheck(operators._flash_attn_backward.default, back)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        operators._flash_attn_forward(*leaves, *MASKS, False)[0].sum().backward()


def test_end_to_end(draw):
    operators = torch.ops.flash_attn
    q, k, v, dout = draw(10, 4, 16), draw(10, 2, 16), draw(10, 2, 16), draw(10, 4, 16)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    parts = [slice(0, 3), slice(3, 10)]
    made = [wanted(*(x[None, part] for x in leaves)) for part in parts]
    torch.cat([one for one, _ in made], 1).backward(dout[None].double())
    given = (q, k, v, STARTS, STARTS, 7, 7, *MASKS)
    out, lse, *_ = operators._flash_attn_varlen_forward(*given)
    for part, (one, two) in zip(parts, made):
        close(out[None, part], one)
        close(lse[None, :, part], two)
    grads = [torch.full_like(x, torch.nan) for x in (q, k, v)]
    back = (dout, q, k, v, out, lse, *grads, STARTS, STARTS, 7, 7, *MASKS, False)
    operators._flash_attn_varlen_backward(*back)
    for grad, leaf in zip(grads, leaves):
        close(grad, leaf.grad, 2e-5)
    torch.library.opcheck(operators._flash_attn_varlen_forward.default, given)
    torch.library.opcheck(operators._flash_attn_varlen_backward.default, back)


@pytest.mark.parametrize("ragged", [False, True])
def test_shapes_without_data_are_those_with_data(draw, ragged):
    x = draw(10, 4, 16) if ragged else draw(2, 130, 4, 16)
    operator = torch.ops.flash_attn._flash_attn_forward
    starts = ()
    if ragged:
        operator, starts = torch.ops.flash_attn._flash_attn_varlen_forward, (STARTS, STARTS, 7, 7)
    dropped = (0.3, *MASKS[1:], True)
    real = operator(x, x, x, *starts, *dropped)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(x)
        told = operator(fake, fake, fake, *starts, *dropped)
    assert real[2].shape == ((2, 4, 128, 128) if ragged else (2, 4, 256, 256))
    for one, other in zip(real, told, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype and one.device == other.device


@pytest.mark.parametrize("ragged", [False, True])
def test_later_flash_attention_3(draw, ragged):
    operator, inputs = torch.ops.flash_attn_3._flash_attn_forward, [draw(2, 7, 4, 16) for _ in range(3)]
    options = {"softmax_scale": 0.25, "causal": True, "window_size_left": 3, "softcap": 2.0}
    leaves, dout = [x.requires_grad_() for x in inputs], draw(2, 7, 4, 16)
    one, two = wanted(*leaves)
    by_definition = torch.autograd.grad(one, leaves, dout.double())
    given = leaves
    if ragged:
        options |= {"cu_seqlens_q": torch.tensor([0, 7, 14]).int(), "max_seqlen_q": 7}
        options |= {"cu_seqlens_k": torch.tensor([0, 7, 14]).int(), "max_seqlen_k": 7}
        given = [x.flatten(0, 1) for x in leaves]
    out, lse, *parts = operator(*given, **options)
    assert [part.numel() for part in parts] == [0, 0]
    close(out.view(2, 7, 4, 16), one)
    close(lse.view(4, 2, 7).transpose(0, 1) if ragged else lse, two)
    made = torch.autograd.grad(out, leaves, dout.view_as(out))
    eager = fa3._flash_attn_forward(*given, **options)[0]
    again = torch.autograd.grad(eager, leaves, dout.view_as(out))
    for grad, same, right in zip(made, again, by_definition):
        close(grad, right, 2e-5)
        assert torch.equal(grad, same)
    torch.library.opcheck(operator.default, [x.detach().requires_grad_() for x in given], options)
    with pytest.raises(ValueError, match="^out_: asks"):
        operator(*given, out_=torch.empty_like(given[0]), **options)
    with pytest.raises(NotImplementedError, match="^attention_chunk"):
        operator(*given, attention_chunk=2, **options)


def test_a_compiled_graph_calls_them_by_name(draw):
    q, graphs = draw(2, 5, 4, 16), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    def call(q):
        return fa2._wrapped_flash_attn_forward(q, q, q, *MASKS, False)[0]

    out = torch.compile(call, backend=backend, fullgraph=True)(q)
    assert torch.equal(out, call(q))
    assert "flash_attn._flash_attn_forward" in {str(node.target) for node in graphs[0].graph.nodes}


def test_names_around_the_operators(draw):
    q = draw(2, 5, 4, 16)
    for name in ("forward", "backward", "varlen_forward", "varlen_backward"):
        wrapped = getattr(fa2, f"_wrapped_flash_attn_{name}")
        assert str(wrapped) == str(getattr(torch.ops.flash_attn, f"_flash_attn_{name}"))
    with pytest.raises(AttributeError, match="_wrapped_nothing"):
        fa2._wrapped_nothing
    sirdar.compat.uninstall()
    assert fa2._wrapped_flash_attn_forward is fa2._flash_attn_forward
    for space in (torch.ops.flash_attn, torch.ops.flash_attn_3):
        for name in ("_flash_attn_forward", "_flash_attn_backward", "fwd", "bwd"):
            assert not hasattr(space, name)
    # Another flash-attn that is imported now can define its own, and install() leaves those alone.
    other = torch.library.Library("flash_attn", "FRAGMENT")
    other.define("_flash_attn_forward(Tensor x) -> Tensor")
    other.impl("_flash_attn_forward", torch.clone, "CompositeExplicitAutograd")
    sirdar.compat.install()
    try:
        assert torch.equal(torch.ops.flash_attn._flash_attn_forward(q), q)
        assert fa2._wrapped_flash_attn_forward is fa2._flash_attn_forward
        assert str(fa2._wrapped_flash_attn_backward) == "flash_attn._flash_attn_backward"
    finally:
        other._destroy()


def test_helpers(draw):
    x = draw(4, 6)
    for module in (fa2, fa3):
        assert module.maybe_contiguous(None) is None and module.maybe_contiguous(x) is x
        assert module.maybe_contiguous(x.t()).stride() == (4, 1)
        assert [module.round_multiple(n, 128) for n in (0, 1, 128, 129)] == [0, 128, 128, 256]


def test_modules_of_later_releases(draw):
    import flash_attn_3
    import flash_attn_3._C  # noqa: F401
    import flash_attn_3.flash_attn_interface as inside
    import flash_attn_interface as beside

    assert inside is beside is fa3 and flash_attn_3.flash_attn_interface is fa3
    for name in ("flash_attn_3", "flash_attn_3._C", "flash_attn_3.flash_attn_interface"):
        assert importlib.util.find_spec(name)
    sirdar.compat.uninstall()
    assert importlib.util.find_spec("flash_attn_3") is None


def test_a_cache_call_returns_four(draw):
    q, cache = draw(2, 1, 4, 16), draw(2, 9, 2, 16)
    out, lse, *parts = fa3.flash_attn_with_kvcache(q, cache, cache, return_softmax_lse=True)
    one, two = torch_formula.attention(q, cache, cache)
    close(out, one)
    close(lse, two)
    assert [part.numel() for part in parts] == [0, 0]
    assert len(flash_attn.flash_attn_with_kvcache(q, cache, cache, return_softmax_lse=True)) == 2


def test_functions_take_what_their_operators_take():
    for name in ("_flash_attn_forward", "_flash_attn_backward"):
        arguments = getattr(torch.ops.flash_attn_3, name).default._schema.arguments
        known = list(inspect.signature(getattr(fa3, name)).parameters.values())
        for argument, parameter in zip(arguments, known):
            assert argument.name == parameter.name
            if argument.has_default_value():
                assert argument.default_value == parameter.default
