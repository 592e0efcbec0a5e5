"""sirdar.torch.scaled_dot_product_attention against torch's own in float64, and the context that replaces it."""

import threading
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as imported_before

import sirdar.torch
from torch_formula import close

sdpa = sirdar.torch.scaled_dot_product_attention


@pytest.fixture
def draw():
    generator = torch.Generator().manual_seed(5)
    return lambda *shape: torch.randn(*shape, generator=generator, requires_grad=True)


def agree(q, k, v, attn_mask=None, tolerance=1e-5, **options):
    """Values and gradients, of a floating mask too."""
    inputs = [q, k, v] + ([attn_mask] if attn_mask is not None and attn_mask.requires_grad else [])
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    mask = wide[3] if len(wide) == 4 else attn_mask
    if mask is not None and mask.is_floating_point():
        mask = mask.double()
    if mask is not None and mask.dim() == 1:
        mask = mask[None]  # torch's own needs two axes of some masks
    actual = sdpa(q, k, v, attn_mask, **options)
    wanted = F.scaled_dot_product_attention(*wide[:3], mask, **options)
    assert actual.shape == wanted.shape and actual.dtype == q.dtype
    close(actual, wanted, tolerance)
    for one, other in zip(
        torch.autograd.grad(actual.sin().sum(), inputs),
        torch.autograd.grad(wanted.sin().sum(), wide),
    ):
        assert one.shape == other.shape
        close(one, other, tolerance)


@pytest.mark.parametrize(
    "shape_q, shape_k",
    [
        ((2, 4, 5, 16), (2, 4, 7, 16)), ((2, 4, 7, 16), (2, 4, 5, 16)), ((4, 5, 16), (4, 7, 16)),
        ((5, 16), (7, 16)), ((2, 3, 4, 5, 16), (2, 3, 4, 7, 16)), ((2, 4, 5, 16), (1, 4, 7, 16)),
        ((1, 4, 5, 16), (3, 4, 7, 16)), ((2, 4, 5, 16), (2, 1, 7, 16)), ((2, 4, 1, 16), (2, 4, 7, 16)),
        ((4, 5, 16), (2, 4, 7, 16)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_causal", [False, True])
def test_any_rank_broadcasts_and_causal_is_aligned_to_the_top_left(
    draw, shape_q, shape_k, is_causal
):
    agree(draw(*shape_q), draw(*shape_k), draw(*shape_k), is_causal=is_causal)


def test_values_may_be_wider_and_the_scale_is_taken(draw):
    agree(draw(2, 4, 5, 16), draw(2, 4, 7, 16), draw(2, 4, 7, 24), scale=0.3)


@pytest.mark.parametrize("heads_kv", [1, 2, 4])
def test_groups_of_heads(draw, heads_kv):
    agree(
        draw(2, 4, 5, 16), draw(2, heads_kv, 7, 16), draw(2, heads_kv, 7, 16),
        enable_gqa=True, is_causal=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "shape", [(5, 7), (7,), (1, 7), (5, 1), (4, 5, 7), (2, 1, 5, 7), (2, 1, 1, 7), (2, 4, 5, 7)]
)
def test_masks_of_any_shape(draw, shape):
    q, k, v = draw(2, 4, 5, 16), draw(2, 4, 7, 16), draw(2, 4, 7, 16)
    agree(q, k, v, draw(*shape))
    shown = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.3
    agree(q, k, v, shown)
    five = [
        tensor.detach().expand(3, *tensor.shape).contiguous().requires_grad_()
        for tensor in (q, k, v)
    ]
    agree(*five, shown)


def test_a_row_that_sees_nothing_gives_0_and_no_gradient(draw):
    q, k, v = draw(1, 2, 3, 8), draw(1, 2, 4, 8), draw(1, 2, 4, 8)
    shown = torch.ones(3, 4, dtype=torch.bool)
    shown[1] = False
    out = sdpa(q, k, v, shown)
    out.sum().backward()
    assert out[:, :, 1].eq(0).all() and q.grad[:, :, 1].eq(0).all()
    assert all(tensor.grad.isfinite().all() for tensor in (q, k, v))


def test_torchs_causal_bias(draw):
    q, k, v = draw(1, 2, 3, 8), draw(1, 2, 5, 8), draw(1, 2, 5, 8)
    for variant in (causal_upper_left, causal_lower_right):
        close(sdpa(q, k, v, variant(3, 5)), F.scaled_dot_product_attention(q, k, v, variant(3, 5)))


def test_16_bits(draw):
    q, k, v = (draw(1, 2, 9, 8).detach() for _ in range(3))
    for dtype in (torch.bfloat16, torch.float16):
        out = sdpa(*(tensor.to(dtype) for tensor in (q, k, v)), torch.zeros(9, 9))  # an fp32 mask
        assert out.dtype == dtype
        close(out, F.scaled_dot_product_attention(q, k, v), 0.03)


def test_dropout_is_honoured(draw):
    q, k = draw(1, 2, 64, 8), draw(1, 2, 64, 8)
    weights = sdpa(q, k, torch.eye(64).expand(1, 2, 64, 64), dropout_p=0.25)
    share = (weights == 0).double().mean().item()
    assert abs(share - 0.25) < 0.03
    mean = sum(sdpa(q, k, torch.ones(1, 2, 64, 1), dropout_p=0.25).mean() for _ in range(20)) / 20
    assert abs(mean.item() - 1) < 0.05


def test_what_torch_refuses_is_refused(draw):
    q, k, v = draw(2, 4, 5, 16), draw(2, 4, 7, 16), draw(2, 4, 7, 16)
    cases = [
        (ValueError, "is_causal", lambda: sdpa(q, k, v, torch.ones(5, 7).bool(), is_causal=True)),
        (ValueError, "heads", lambda: sdpa(q, k[:, :2], v[:, :2])),
        (ValueError, "enable_gqa", lambda: sdpa(q, k[:, :3], v[:, :3], enable_gqa=True)),
        (ValueError, "attn_mask: has dtype", lambda: sdpa(q, k, v, torch.ones(5, 7).int())),
        (ValueError, "axes", lambda: sdpa(q[0, 0, 0], k, v)),
        (TypeError, "float64", lambda: sdpa(q.double(), k.double(), v.double())),
    ]
    for kind, words, call in cases:
        with pytest.raises(kind, match=words):
            call()


def counted(monkeypatch):
    """A list that grows with every call that this library computes."""
    calls = []
    original = sirdar.torch._sdpa.scaled_dot_product_attention

    def count(*args, **kwargs):
        calls.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(sirdar.torch._sdpa, "scaled_dot_product_attention", count)
    return calls


def test_the_context_finds_every_name_of_torchs_function(draw, monkeypatch):
    q, k, v = draw(2, 4, 5, 16), draw(2, 4, 7, 16), draw(2, 4, 7, 16)
    calls = counted(monkeypatch)
    module = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    wanted = module(x, x, x, need_weights=False)[0]
    elsewhere = []
    with torch.no_grad(), sirdar.torch.sdpa():
        F.scaled_dot_product_attention(q, k, v)
        imported_before(q, k, v, is_causal=True)
        assert len(calls) == 2
        close(module(x, x, x, need_weights=False)[0], wanted)
        assert len(calls) == 3
        thread = threading.Thread(
            target=lambda: elsewhere.append(F.scaled_dot_product_attention(q, k, v))
        )
        thread.start()
        thread.join()
        assert len(calls) == 3 and len(elsewhere) == 1
        with sirdar.torch.sdpa():
            F.scaled_dot_product_attention(q, k, v)
        assert len(calls) == 4
    F.scaled_dot_product_attention(q, k, v)
    assert len(calls) == 4 and F.scaled_dot_product_attention is imported_before


def test_the_context_falls_back_only_where_it_may_and_says_so(draw):
    q = draw(1, 2, 3, 8).double()
    with sirdar.torch.sdpa(), pytest.raises(TypeError, match="float64"):
        F.scaled_dot_product_attention(q, q, q)
    with (
        sirdar.torch.sdpa(fallback="torch"),
        pytest.warns(UserWarning, match="torch's own attention") as warned,
    ):
        assert F.scaled_dot_product_attention(q, q, q).dtype == torch.float64
    assert warned[0].filename == __file__
    with pytest.raises(ValueError, match="fallback"):
        sirdar.torch.sdpa(fallback="silent")


def test_the_innermost_context_decides(draw):
    q = draw(1, 2, 3, 8).double()
    with sirdar.torch.sdpa():
        with sirdar.torch.sdpa(fallback="torch"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inner = F.scaled_dot_product_attention(q, q, q), imported_before(q, q, q)
        with pytest.raises(TypeError, match="float64"):
            F.scaled_dot_product_attention(q, q, q)
        with pytest.raises(TypeError, match="float64"):
            imported_before(q, q, q)
    outside = F.scaled_dot_product_attention(q, q, q)
    assert all(torch.equal(out, outside) for out in inner)


def test_compiled_under_the_context(draw):
    q, k, v = draw(2, 4, 5, 16), draw(2, 4, 7, 16), draw(2, 4, 7, 16)
    compiled = torch.compile(
        lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True),
        fullgraph=True,
        backend="aot_eager",
    )
    with sirdar.torch.sdpa():
        out = compiled(q, k, v)
    assert torch.equal(out, sdpa(q, k, v, is_causal=True))


@pytest.mark.parametrize("is_causal, scale", [(False, None), (True, None), (True, 0.3)])
def test_the_short_way_is_the_long_one(is_causal, scale):
    generator = torch.Generator().manual_seed(3)
    leaves = [torch.randn(2, 4, 6, 16, generator=generator).requires_grad_() for _ in range(3)]
    dout = torch.randn(2, 6, 4, 16, generator=generator).transpose(1, 2)
    q, k, v = (leaf.transpose(1, 2) for leaf in leaves)
    masks = {"causal": True, "alignment": "top_left"} if is_causal else {}
    wanted = sirdar.torch.attention(q, k, v, softmax_scale=scale, **masks).transpose(1, 2)
    out = sirdar.torch.scaled_dot_product_attention(*leaves, is_causal=is_causal, scale=scale)
    with torch.no_grad():
        plain = sirdar.torch.scaled_dot_product_attention(*leaves, is_causal=is_causal, scale=scale)
    assert torch.equal(out, wanted) and torch.equal(plain, wanted)
    for one, other in zip(
        torch.autograd.grad(out, leaves, dout, retain_graph=True),
        torch.autograd.grad(wanted, leaves, dout),
    ):
        assert torch.equal(one, other) and one.shape == (2, 4, 6, 16)
    (first,) = torch.autograd.grad(out.sum(), leaves[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="a second derivative was asked for"):
        first.sum().backward()
    changed = sirdar.torch.scaled_dot_product_attention(*leaves)
    changed.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed.sum().backward()
    lazily = torch.utils.checkpoint.checkpoint(
        sirdar.torch.scaled_dot_product_attention,
        *leaves,
        None,
        0.0,
        is_causal,
        scale,
        use_reentrant=False,
    )
    lazily.backward(dout)
    assert torch.equal(leaves[1].grad, torch.autograd.grad(
        sirdar.torch.scaled_dot_product_attention(*leaves, is_causal=is_causal, scale=scale), leaves[1], dout
    )[0])  # fmt: skip


def packed(draw):
    return draw(2, 6, 3, 4, 16).unbind(2)


LAYOUTS = {
    "heads before rows": lambda draw: [draw(2, 4, 6, 16) for _ in range(3)],
    "rows before heads": lambda draw: [draw(2, 6, 4, 16).transpose(1, 2) for _ in range(3)],
    "packed": lambda draw: [one.transpose(1, 2) for one in packed(draw)],
    "heads repeated": lambda draw: [
        draw(2, 4, 6, 16), *(draw(2, 1, 6, 16).expand(2, 4, 6, 16) for _ in range(2))
    ],
    "wider values": lambda draw: [draw(2, 4, 6, 16), draw(2, 4, 7, 16), draw(2, 4, 7, 24)],
    "a slice": lambda draw: [draw(2, 4, 9, 20)[:, :, 1:7, 2:18] for _ in range(3)],
    "backwards": lambda draw: [draw(2, 4, 6, 16), *(draw(2, 4, 6, 16).flip(2) for _ in range(2))],
    "a strided last axis": lambda draw: [draw(2, 4, 6, 32)[..., ::2] for _ in range(3)],
    "a column each": lambda draw: [draw(2, 4, 6, 1) for _ in range(3)],
}  # fmt: skip


@pytest.mark.parametrize(
    "shape", [(7,), (1, 7), (5, 7), (4, 5, 7), (2, 1, 1, 7), (1, 4, 1, 1), (2, 4, 5, 7)]
)
def test_masks_the_first_time_and_the_next(draw, shape):
    for _ in range(2):
        q, k, v = draw(2, 4, 5, 16), draw(2, 4, 7, 16), draw(2, 4, 7, 16)
        agree(q, k, v, draw(*shape).detach())
        agree(q, k, v, (draw(*shape) > -0.5).detach(), scale=0.3)
        agree(q, k, v, torch._neg_view(draw(*shape).detach()))
        with torch.no_grad():
            shown = draw(*shape) > -0.5
            close(
                sdpa(q, k, v, shown),
                F.scaled_dot_product_attention(q, k, v, shown.expand(2, 4, 5, 7)),
            )
    strange = draw(2, 4, 7, 5).detach().mT
    agree(q, k, v, strange)
    out = sdpa(q, k, v, strange)
    (first,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    close(first, torch.autograd.grad(sdpa(q, k, v, strange).sum(), q)[0])
    with pytest.raises(NotImplementedError, match="a second derivative was asked for"):
        first.sum().backward()


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_librarys_order_of_axes_has_the_same_short_way(draw, name):
    """Against the way that an lse takes, which is the long one."""
    for _ in range(2):
        leaves = LAYOUTS[name](draw)
        q, k, v = (leaf.transpose(1, 2) for leaf in leaves)
        for options in (
            {}, {"causal": True}, {"causal": True, "alignment": "top_left", "softmax_scale": 0.3},
        ):  # fmt: skip
            out = sirdar.torch.attention(q, k, v, **options)
            wanted, _ = sirdar.torch.attention(q, k, v, **options, return_lse=True)
            assert torch.equal(out, wanted) and out.shape == wanted.shape
            for weights in (out.detach().sin(), torch.ones(()).expand(out.shape)):
                for one, other in zip(
                    torch.autograd.grad(out, leaves, weights, retain_graph=True),
                    torch.autograd.grad(wanted, leaves, weights, retain_graph=True),
                ):
                    assert torch.equal(one, other)
            with torch.no_grad():
                assert torch.equal(sirdar.torch.attention(q, k, v, **options), wanted)


@pytest.mark.parametrize("name", LAYOUTS)
def test_any_layout_the_first_time_and_the_next(draw, name):
    for _ in range(2):  # the second call takes what the first has learned
        q, k, v = LAYOUTS[name](draw)
        agree(q, k, v, is_causal=True)
        for weights in (
            torch.ones(()).expand(*q.shape[:3], v.shape[3]),
            draw(*q.shape[:2], v.shape[3], q.shape[2]).mT.detach(),
        ):
            out = sdpa(q, k, v)
            wanted = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
            for one, other in zip(
                torch.autograd.grad(out, (q, k, v), weights),
                torch.autograd.grad(wanted, (q, k, v), weights.double()),
            ):
                close(one, other, 1e-5)
        with torch.no_grad():
            assert torch.equal(sdpa(q, k, v), out)


def test_negative_bits_are_read(draw):
    numbers = torch.complex(draw(2, 4, 6, 16).detach(), draw(2, 4, 6, 16).detach())
    minus = numbers.conj().imag  # a view of the imaginary part with its sign in a bit
    plain = [draw(2, 4, 6, 16) for _ in range(3)]
    for _ in range(2):
        assert minus.is_neg()
        close(sdpa(*plain[:2], minus), sdpa(*plain[:2], minus.resolve_neg()))
        for one, other in zip(
            torch.autograd.grad(sdpa(*plain), plain, minus),
            torch.autograd.grad(sdpa(*plain), plain, minus.resolve_neg()),
        ):
            assert torch.equal(one, other)


def test_threads_call_at_once(draw):
    given = [[draw(1, 2, 3 + i, 8) for _ in range(3)] for i in range(4)]
    wanted = [torch.autograd.grad(sdpa(*qkv).sin().sum(), qkv) for qkv in given]
    found, wrong = [0] * 4, []

    def work(i):
        for _ in range(50):
            grads = torch.autograd.grad(sdpa(*given[i]).sin().sum(), given[i])
            wrong.extend(one for one, two in zip(grads, wanted[i]) if not torch.equal(one, two))
            found[i] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [50] * 4 and not wrong


def test_errors_speak_of_torchs_arguments_and_axes(draw):
    q, k, v = draw(2, 4, 5, 16), draw(2, 4, 7, 16), draw(2, 4, 7, 16)
    strided = torch.nested.nested_tensor([torch.randn(4, 5, 16)])
    cases = [
        (ValueError, "^attn_mask: has shape [[]3, 5]", lambda: sdpa(q, k, v, torch.ones(3, 5))),
        (ValueError, "^attn_mask: has shape [[]3, 5]", lambda: sdpa(q, k, v, torch.ones(3, 5).bool())),
        (ValueError, "^key: has 8 columns and query 16;", lambda: sdpa(q, k[..., :8], v)),
        (ValueError, "^value: has 6 rows and key 7;", lambda: sdpa(q, k, v[:, :, :6])),
        (ValueError, "^query, key, value: have the leading axes", lambda: sdpa(q, k.expand(3, 2, 4, 7, 16), v.expand(4, 2, 4, 7, 16))),
        (ValueError, "^query, key, value: have dtypes", lambda: sdpa(q, k.half(), v)),
        (ValueError, "^query, key, value: have dtypes", lambda: sdpa(q, k, v.half())),
        (TypeError, "^query: dtype torch.float64", lambda: sdpa(q.double(), k.double(), v.double())),
        (ValueError, "^scale: nan is not finite", lambda: sdpa(q, k, v, scale=float("nan"))),
        (TypeError, "^scale: 'a' is not a number", lambda: sdpa(q, k, v, scale="a")),
        (NotImplementedError, "^key: lies on the meta device", lambda: sdpa(q, k.to("meta"), v)),
        (NotImplementedError, "^query: is a torch.sparse_coo tensor", lambda: sdpa(q.to_sparse(), k, v)),
        (NotImplementedError, "^query: is a nested tensor", lambda: sdpa(strided, k, v)),
    ]  # fmt: skip
    for kind, words, call in cases:
        with pytest.raises(kind, match=words):
            call()


@pytest.mark.parametrize("flag", ["is_causal", "enable_gqa"])
@pytest.mark.parametrize("fewer_axes", [False, True])
def test_flags_are_bools(draw, flag, fewer_axes):
    qkv = [draw(1, 2, 5, 8).detach() for _ in range(3)]
    qkv = [tensor[0] for tensor in qkv] if fewer_axes else qkv
    for value in ("False", [1], 2, 1, "x", None, torch.tensor(True)):
        with pytest.raises(TypeError, match=rf"^{flag}: .* is not a flag; pass True or False\.$"):
            sdpa(*qkv, **{flag: value})
        with pytest.raises(TypeError):
            F.scaled_dot_product_attention(*qkv, **{flag: value})
    for value in (False, True):
        wanted = F.scaled_dot_product_attention(*qkv, **{flag: value})
        close(sdpa(*qkv, **{flag: np.bool_(value)}), wanted)


class _Listener(torch.utils._python_dispatch.TorchDispatchMode):
    """Hears the names of operators."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.heard.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("has_mask", [False, True])
def test_what_differs_from_the_last_call_is_seen(draw, has_mask):
    """Tensors of one description, while torch, their flags or the arguments are in another state."""
    plain = [draw(1, 2, 4, 16).detach() for _ in range(3)]
    q, k, v = plain
    mask = torch.tensor([[True, False, True, True]]) if has_mask else None
    wanted = F.scaled_dot_product_attention(*plain, mask)

    def again():
        for _ in range(2):
            close(sdpa(*plain, mask), wanted)

    again()
    for options in ({"scale": 0.3}, {"scale": 0.3}, {"scale": 1.0}, {"enable_gqa": True}, {"is_causal": True}):
        if not (has_mask and "is_causal" in options):
            close(sdpa(*plain, mask, **options), F.scaled_dot_product_attention(*plain, mask, **options))
        again()
    for bad in ({"is_causal": 0}, {"enable_gqa": 0}, {"scale": "0.25"}):
        with pytest.raises(TypeError):
            sdpa(*plain, mask, **bad)
        again()
    with torch.autocast("cpu", torch.bfloat16):
        assert sdpa(*plain, mask).dtype == torch.bfloat16
    again()
    with _Listener() as listener:
        sdpa(*plain, mask)
    assert "sirdar::forward" in listener.heard
    again()
    mapped = torch.func.vmap(lambda q: sdpa(q, k, v, mask))(torch.stack((q, k)))
    close(mapped[0], wanted)
    derived = torch.func.grad(lambda q: sdpa(q, k, v, mask).sum())(q)
    for _ in range(2):
        recorded = [tensor.clone().requires_grad_() for tensor in plain]
        close(torch.autograd.grad(sdpa(*recorded, mask).sum(), recorded[0])[0], derived)
        with torch.no_grad():
            assert not sdpa(*recorded, mask).requires_grad
            assert not sdpa(*recorded, mask).requires_grad
        assert sdpa(*recorded, mask).requires_grad and not sdpa(*plain, mask).requires_grad
    again()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(NotImplementedError, match="forward-mode"):
            sdpa(dual, k, v, mask)
    again()
    with torch.inference_mode():
        again()
    if has_mask:
        close(sdpa(*plain, mask.float()), F.scaled_dot_product_attention(*plain, mask.float()))
        bias = mask.float().requires_grad_()
        with torch.no_grad():
            sdpa(*plain, bias), sdpa(*plain, bias)
        assert torch.autograd.grad(sdpa(*plain, bias).sum(), bias)[0].shape == bias.shape
    again()
