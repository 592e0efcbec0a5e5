"""The autograd functions below FlashAttention-2's functions, which some programs import: FlashAttnFunc.apply(...)."""

import inspect

import pytest
import torch
import torch_formula
from torch.utils.checkpoint import checkpoint
from torch_formula import close, shown

from sirdar.compat.flash_attn import flash_attn_interface as fa2

STARTS_Q, STARTS_K = torch.tensor([0, 3, 10]).int(), torch.tensor([0, 5, 9]).int()
MASKS = "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic return_softmax".split()
STARTS = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k".split()
NAMES = {
    "FlashAttnFunc": ["q", "k", "v", *MASKS],
    "FlashAttnKVPackedFunc": ["q", "kv", *MASKS],
    "FlashAttnQKVPackedFunc": ["qkv", *MASKS],
    "FlashAttnVarlenFunc": ["q", "k", "v", *STARTS, *MASKS, "block_table"],
    "FlashAttnVarlenKVPackedFunc": ["q", "kv", *STARTS, *MASKS],
    "FlashAttnVarlenQKVPackedFunc": ["qkv", "cu_seqlens", "max_seqlen", *MASKS],
}
DEFAULTS = {
    "dropout_p": 0.0, "softmax_scale": 0.3, "causal": True, "window_size": (3, -1), "softcap": 4.0, "alibi_slopes": None,
    "deterministic": False, "return_softmax": False, "block_table": None, "cu_seqlens_q": STARTS_Q, "max_seqlen_q": 7,
    "cu_seqlens_k": STARTS_K, "max_seqlen_k": 5, "cu_seqlens": STARTS_Q, "max_seqlen": 7,
}  # fmt: skip


def draw(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, requires_grad=True)


def leaves_of(name):
    rows = ((10,), (9,)) if "Varlen" in name else ((2, 5), (2, 7))
    if "QKV" in name:
        return {"qkv": draw(*rows[0], 3, 4, 16)}
    if "KV" in name:
        return {"q": draw(*rows[0], 4, 16), "kv": draw(*rows[1], 2, 2, 16)}
    return {"q": draw(*rows[0], 4, 16), "k": draw(*rows[1], 2, 16), "v": draw(*rows[1], 2, 16)}


def call(name, leaves, is_grad_enabled=True, **changed):
    given = {**DEFAULTS, **leaves, **changed}
    return getattr(fa2, name).apply(*(given[one] for one in NAMES[name]), is_grad_enabled)


def formula(name, leaves):
    """(out, lse) by the definition, in float64."""
    if "qkv" in leaves:
        q, k, v = leaves["qkv"].unbind(-3)
    else:
        q, (k, v) = leaves["q"], leaves["kv"].unbind(-3) if "kv" in leaves else (leaves["k"], leaves["v"])
    if "Varlen" not in name:
        visible = shown(q.shape[1], k.shape[1], causal=True, left=3)
        return torch_formula.attention(q, k, v, scale=0.3, softcap=4.0, visible=visible)
    ends_k = STARTS_Q if "qkv" in leaves else STARTS_K
    parts = []
    for b in range(2):
        rows, keys = (slice(ends[b], ends[b + 1]) for ends in (STARTS_Q, ends_k))
        one, two, three = q[None, rows], k[None, keys], v[None, keys]
        visible = shown(one.shape[1], two.shape[1], causal=True, left=3)
        parts.append(torch_formula.attention(one, two, three, scale=0.3, softcap=4.0, visible=visible))
    return torch.cat([out[0] for out, _ in parts]), torch.cat([lse[0] for _, lse in parts], -1)


def loss(out, lse=None):
    total = out.double().sin().sum()
    return total if lse is None else total + lse.double().nan_to_num(neginf=0.0).cos().sum()


@pytest.mark.parametrize("name", NAMES)
def test_signature(name):
    function = getattr(fa2, name)
    assert issubclass(function, torch.autograd.Function)
    assert list(inspect.signature(function.forward).parameters) == ["ctx", *NAMES[name], "is_grad_enabled"]


@pytest.mark.parametrize("name", NAMES)
def test_out_lse_and_gradients(name):
    leaves = leaves_of(name)
    wanted, wanted_lse = formula(name, leaves)
    out = call(name, leaves)
    close(out, wanted)
    with_lse, lse, weights = call(name, leaves, return_softmax=True)
    assert torch.equal(with_lse, out) and weights.numel() == 0 and lse.dtype == torch.float32
    close(lse, wanted_lse)
    inputs = list(leaves.values())
    for made, truth in (((out,), (wanted,)), ((with_lse, lse), (wanted, wanted_lse))):
        grads = torch.autograd.grad(loss(*made), inputs, retain_graph=True)
        for one, other in zip(grads, torch.autograd.grad(loss(*truth), inputs, retain_graph=True)):
            close(one, other, 2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_compiled(name):
    torch._dynamo.reset()  # the other functions were compiled from the same lines
    leaves = leaves_of(name)
    inputs = list(leaves.values())

    def step(*inputs):
        out, lse, _ = call(name, dict(zip(leaves, inputs)), torch.is_grad_enabled(), return_softmax=True)
        return loss(out, lse)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    found, wanted = compiled(*inputs), step(*inputs)
    close(found, wanted)
    for one, other in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(wanted, inputs)):
        close(one, other)
    with torch.no_grad():
        close(compiled(*inputs), wanted)


@pytest.mark.parametrize("name", ["FlashAttnFunc", "FlashAttnVarlenQKVPackedFunc"])
def test_dropout_is_that_of_the_functions(name):
    """Which draw from the same generator in the same order; the backward pass drops what the forward pass did."""
    leaves = leaves_of(name)
    given = {**DEFAULTS, **leaves, "dropout_p": 0.4, "softcap": 0.0}
    called = {"FlashAttnFunc": fa2.flash_attn_func}.get(name, fa2.flash_attn_varlen_qkvpacked_func)
    order = [given[one] for one in NAMES[name] if one != "return_softmax"]
    torch.manual_seed(3)
    out, lse, weights = call(name, leaves, dropout_p=0.4, softcap=0.0, return_softmax=True)
    torch.manual_seed(3)
    wanted, wanted_lse, wanted_weights = called(*order, return_attn_probs=True)
    assert torch.equal(out, wanted) and torch.equal(lse, wanted_lse) and torch.equal(weights, wanted_weights)
    assert not weights.requires_grad and (weights < 0).any()
    inputs = list(leaves.values())
    for one, other in zip(torch.autograd.grad(loss(out), inputs), torch.autograd.grad(loss(wanted), inputs)):
        assert torch.equal(one, other)
    torch.manual_seed(4)
    plain = torch.autograd.grad(loss(call(name, leaves, dropout_p=0.4)), inputs)
    torch.manual_seed(4)
    again = checkpoint(lambda *x: call(name, dict(zip(leaves, x)), dropout_p=0.4), *inputs, use_reentrant=False)
    for one, other in zip(plain, torch.autograd.grad(loss(again), inputs)):
        assert torch.equal(one, other)


def test_slopes_and_autocast():
    leaves = leaves_of("FlashAttnFunc")
    inputs, slopes = list(leaves.values()), torch.tensor([0.5, 0.25, 0.1, 0.0])
    wanted = fa2.flash_attn_func(*inputs, 0.0, 0.3, True, (3, -1), 4.0, slopes)
    out = call("FlashAttnFunc", leaves, alibi_slopes=slopes)
    assert torch.equal(out, wanted)
    for one, other in zip(torch.autograd.grad(loss(out), inputs), torch.autograd.grad(loss(wanted), inputs)):
        assert torch.equal(one, other)
    with torch.autocast("cpu", torch.bfloat16):
        out = call("FlashAttnFunc", leaves)
        wanted = fa2.flash_attn_func(*inputs, 0.0, 0.3, True, (3, -1), 4.0)
    assert out.dtype == torch.bfloat16 and torch.equal(out, wanted)
    grads = torch.autograd.grad(loss(out), inputs)
    for one, other in zip(grads, torch.autograd.grad(loss(wanted), inputs)):
        assert one.dtype == torch.float32 and torch.equal(one, other)


def test_what_has_no_backward_pass():
    leaves = leaves_of("FlashAttnFunc")
    out = call("FlashAttnFunc", leaves, is_grad_enabled=False)
    with pytest.raises(RuntimeError, match="^is_grad_enabled: it was False"):
        out.sum().backward()
    for wrong in (2, "yes", None):
        with pytest.raises(TypeError, match="^is_grad_enabled: .* is not a flag"):
            call("FlashAttnFunc", leaves, is_grad_enabled=wrong)
    with torch.no_grad():
        assert not call("FlashAttnFunc", leaves).requires_grad
    first = torch.autograd.grad(call("FlashAttnFunc", leaves).sum(), list(leaves.values()), create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        first[0].sum().backward()
    with pytest.raises(ValueError, match="^kv: "):
        call("FlashAttnKVPackedFunc", {"q": leaves["q"], "kv": leaves["k"]})
    with pytest.raises(TypeError, match="^q: "):
        call("FlashAttnFunc", {**leaves, "q": None})


def test_pages():
    ragged = leaves_of("FlashAttnVarlenFunc")
    pages = {"k": draw(3, 5, 2, 16), "v": draw(3, 5, 2, 16)}
    table = torch.tensor([[2], [0]]).int()
    out = call("FlashAttnVarlenFunc", {"q": ragged["q"], **pages}, block_table=table)
    flat = {name: torch.cat([page[2, :5], page[0, :4]]) for name, page in pages.items()}
    assert torch.equal(out, call("FlashAttnVarlenFunc", {"q": ragged["q"], **flat}))
    with pytest.raises(NotImplementedError, match="^block_table: attention over pages has no backward"):
        out.sum().backward()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wanting", ["alibi_slopes", "softmax_scale", "softcap", "dropout_p"])
def test_what_gets_no_gradient_is_refused(name, wanting):
    """As by the functions; not where nothing is recorded."""
    value = torch.rand(4 if wanting == "alibi_slopes" else (), requires_grad=True)
    for leaves in (leaves_of(name), {one: leaf.detach() for one, leaf in leaves_of(name).items()}):
        with pytest.raises(ValueError, match=f"^{wanting}: .*gradient.*"):
            call(name, leaves, **{wanting: value})
        wanted = call(name, leaves, **{wanting: value.detach()})
        with torch.no_grad():
            found = call(name, leaves, False, **{wanting: value})
        assert wanting == "dropout_p" or torch.equal(found, wanted)
    with pytest.raises(TypeError, match="^alibi_slopes: a list"):
        call(name, leaves_of(name), alibi_slopes=[1.0] * 4)
