"""The flash-attn interfaces: names, signatures, return values, and what they compute."""

import importlib.metadata
import inspect
import pathlib
import subprocess
import sys

import pytest
import torch
import torch_formula

import sirdar.compat
from sirdar.compat import flash_attn, flash_attn_2_cuda, flash_attn_interface as fa3
from sirdar.compat.flash_attn import bert_padding, flash_attn_interface as fa2
from sirdar.compat.flash_attn.layers.rotary import apply_rotary_emb
from torch_formula import close, shown

TAIL = [
    ("dropout_p", 0.0), ("softmax_scale", None), ("causal", False), ("window_size", (-1, -1)),
    ("softcap", 0.0), ("alibi_slopes", None), ("deterministic", False), ("return_attn_probs", False),
]  # fmt: skip


@pytest.fixture
def draw():
    generator = torch.Generator().manual_seed(5)
    return lambda *shape: torch.randn(*shape, generator=generator, requires_grad=True)


@pytest.fixture
def qkv(draw):
    return draw(2, 5, 4, 16), draw(2, 7, 2, 16), draw(2, 7, 2, 16)


def parameters(function):
    return list(inspect.signature(function).parameters.items())


@pytest.mark.parametrize(
    "name, leading, trailing",
    [
        ("flash_attn_func", "q k v", []),
        ("flash_attn_kvpacked_func", "q kv", []),
        ("flash_attn_qkvpacked_func", "qkv", []),
        ("flash_attn_varlen_func", "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k", [("block_table", None)]),
        ("flash_attn_varlen_kvpacked_func", "q kv cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k", []),
        ("flash_attn_varlen_qkvpacked_func", "qkv cu_seqlens max_seqlen", []),
    ],
)  # fmt: skip
def test_signatures_and_defaults(name, leading, trailing):
    found = parameters(getattr(flash_attn, name))
    empty = inspect.Parameter.empty
    wanted = [(word, empty) for word in leading.split()] + TAIL + trailing
    assert [(word, parameter.default) for word, parameter in found] == wanted


def test_out_lse_and_gradients(qkv):
    q, k, v = qkv
    slopes = torch.tensor([0.5, 0.25, 0.1, 0.0])
    distance = (torch.arange(5)[:, None] + 2 - torch.arange(7)).abs()
    out, lse, dropped = flash_attn.flash_attn_func(
        q, k, v, 0.0, 0.3, True, [3, -1], softcap=4.0, alibi_slopes=slopes, return_attn_probs=True
    )
    wanted = torch_formula.attention(
        q, k, v, scale=0.3, softcap=4.0, bias=-slopes[:, None, None] * distance,
        visible=shown(5, 7, causal=True, left=3),
    )  # fmt: skip
    assert dropped.numel() == 0 and lse.dtype == torch.float32
    close(out, wanted[0])
    close(lse, wanted[1])
    for one, other in zip(
        torch.autograd.grad(out.sin().sum(), qkv), torch.autograd.grad(wanted[0].sin().sum(), qkv)
    ):
        close(one, other)


@pytest.mark.parametrize("window", [(-1, -1), (2, 1), (0, -1), (-1, 2), torch.tensor([1, 0])])
def test_windows(qkv, window):
    q, k, v = qkv
    left, right = (None if side < 0 else int(side) for side in window)
    wanted, _ = torch_formula.attention(q, k, v, visible=shown(5, 7, left=left, right=right))
    close(flash_attn.flash_attn_func(q, k, v, window_size=window), wanted)
    close(fa3.flash_attn_func(q, k, v, window_size=window), wanted)


def test_packed_forms_are_the_unpacked_one(qkv, draw):
    q, k, v = qkv
    wanted = flash_attn.flash_attn_func(q, k, v, causal=True)
    assert torch.equal(
        flash_attn.flash_attn_kvpacked_func(q, torch.stack([k, v], 2), causal=True), wanted
    )
    qkv = draw(2, 5, 3, 4, 16)
    wanted = flash_attn.flash_attn_func(*qkv.unbind(2), causal=True)
    for function in (flash_attn.flash_attn_qkvpacked_func, fa3.flash_attn_qkvpacked_func):
        assert torch.equal(function(qkv, causal=True), wanted)
    flat = torch.cat([q[:, :5], k[:, :5], v[:, :5]], dim=2)
    wanted = flash_attn.flash_attn_func(q[:, :5], k[:, :5], v[:, :5])
    assert torch.equal(fa3.flash_attn_qkvpacked_func(flat, num_heads_q=4), wanted)


def test_padded_batches_round_trip(draw):
    qkv = draw(2, 9, 3, 4, 16)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 6:] = mask[1, :2] = False
    tokens, indices, starts, longest, used = bert_padding.unpad_input(qkv, mask)
    assert starts.tolist() == [0, 6, 13] and longest == 7 and used.tolist() == [6, 7]
    out, lse, _ = flash_attn.flash_attn_varlen_qkvpacked_func(
        tokens, starts, longest, causal=True, return_attn_probs=True
    )
    assert lse.shape == (4, 13)
    padded = bert_padding.pad_input(out, indices, 2, 9)
    for b, part in ((0, slice(0, 6)), (1, slice(2, 9))):
        wanted = flash_attn.flash_attn_qkvpacked_func(qkv[b : b + 1, part], causal=True)
        assert torch.equal(padded[b, part], wanted[0])
    assert padded[~mask].eq(0).all()


def test_einops_by_way_of_bert_padding():
    """As verl has it: from flash_attn.bert_padding import index_first_axis, pad_input, rearrange, unpad_input."""
    einops = pytest.importorskip("einops")
    assert bert_padding.rearrange is einops.rearrange and bert_padding.repeat is einops.repeat
    ids = torch.arange(10).view(2, 5)
    flat = bert_padding.rearrange(ids.unsqueeze(-1), "b s ... -> (b s) ...")
    assert bert_padding.index_first_axis(flat, torch.tensor([7, 2])).tolist() == [[7], [2]]
    with pytest.raises(AttributeError, match="no attribute 'reduce'"):
        bert_padding.reduce


def test_dropout_is_shown_by_the_signs_of_the_weights(draw):
    q, k, v = draw(2, 37, 4, 16), draw(2, 50, 2, 16), draw(2, 50, 2, 16)
    out, _, weights = flash_attn.flash_attn_func(
        q, k, v, 0.3, causal=True, window_size=(20, -1), return_attn_probs=True
    )
    assert weights.shape == (2, 4, 128, 128)
    factor = (weights[:, :, :37, :50] >= 0) / 0.7
    wanted, _ = torch_formula.attention(q, k, v, visible=shown(37, 50, True, 20), factor=factor)
    close(out, wanted)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("interface", [fa2, fa3])
def test_decoding_appends_turns_and_attends(draw, interface, interleaved):
    q, new_k, new_v = (draw(2, 3, heads, 16) for heads in (4, 2, 2))  # that require gradients
    cache_k, cache_v = draw(5, 32, 2, 16).detach(), draw(5, 32, 2, 16).detach()
    wanted_k, wanted_v = cache_k.clone(), cache_v.clone()
    lengths, rows, pad = (torch.tensor(x, dtype=torch.int32) for x in ([10, 20], [3, 1], [2, 0]))
    angles = torch.arange(32)[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.01])
    tables = {
        "rotary_cos": angles.cos(),
        "rotary_sin": angles.sin(),
        "rotary_interleaved": interleaved,
    }
    out, lse, *_ = interface.flash_attn_with_kvcache(
        q, cache_k, cache_v, new_k, new_v, **tables, cache_seqlens=lengths, cache_batch_idx=rows,
        cache_leftpad=pad, causal=True, return_softmax_lse=True,
    )  # fmt: skip
    turned_q, turned_k = (
        apply_rotary_emb(
            x.detach(), angles.cos(), angles.sin(), interleaved, seqlen_offsets=lengths
        )
        for x in (q, new_k)
    )
    for b, (length, row, first) in enumerate(zip(lengths.tolist(), rows.tolist(), pad.tolist())):
        wanted_k[row, length : length + 3], wanted_v[row, length : length + 3] = (
            turned_k[b],
            new_v[b].detach(),
        )
        part = slice(first, length + 3)
        visible = shown(3, length + 3 - first, causal=True)
        one, two = torch_formula.attention(
            turned_q[b : b + 1],
            wanted_k[row : row + 1, part],
            wanted_v[row : row + 1, part],
            visible=visible,
        )
        close(out[b : b + 1], one)
        close(lse[b : b + 1], two)
    assert torch.equal(cache_k, wanted_k) and torch.equal(cache_v, wanted_v)
    assert not out.requires_grad and not cache_k.requires_grad
    assert lengths.tolist() == [10, 20]


def _without_memory(*shape):
    tensor = torch.ones(shape)
    tensor.untyped_storage().resize_(0)
    return tensor


REFUSED_CALLS = {
    # what is changed, the exception, what the sentence begins with
    "softcap": (dict(softcap=-3.0), ValueError, "softcap: "),
    "scale": (dict(softmax_scale=float("nan")), ValueError, "softmax_scale: "),
    "window": (dict(window_size=(None, 0)), ValueError, "window_size: is (None, 0)"),
    "causal": (dict(causal="yes"), TypeError, "causal: "),
    "alibi": (dict(alibi_slopes=torch.ones(3)), ValueError, "alibi_slopes: "),
    "q's dtype": (dict(q=torch.ones(2, 3, 4, 16).half()), ValueError, "q, k, v: "),
    "q's heads": (dict(q=torch.ones(2, 3, 3, 16)), ValueError, "num_heads_q: "),
    "q's head_dim": (dict(q=torch.ones(2, 3, 4, 8)), ValueError, "k_cache: shape"),
    "k's length": (dict(k=torch.ones(2, 2, 2, 16)), ValueError, "v: has shape"),
    "k's heads": (dict(k=torch.ones(2, 3, 1, 16)), ValueError, "k: has shape"),
    "v's dim": (dict(v=torch.ones(2, 3, 2, 8)), ValueError, "v: has shape"),
    "v's dtype": (dict(v=torch.ones(2, 3, 2, 16, dtype=torch.int32)), ValueError, "v: has dtype"),
    "v's cache": (dict(v_cache=torch.ones(2, 31, 2, 16)), ValueError, "v_cache: shape"),
    "expanded": (
        dict(v_cache=torch.ones(1, 32, 2, 16).expand(2, -1, -1, -1)),
        ValueError,
        "v_cache: ",
    ),
    "negative": (
        dict(cache_seqlens=torch.tensor([4, -1]).int()),
        ValueError,
        "cache_seqlens: holds -1",
    ),
    "long": (dict(cache_seqlens=30), RuntimeError, "k_cache: holds 32"),
    "lengths": (dict(cache_seqlens=torch.tensor([4]).int()), ValueError, "cache_seqlens: is"),
    "fractions": (dict(cache_seqlens=torch.tensor([4.0, 1.0])), ValueError, "cache_seqlens: is"),
    "row": (
        dict(cache_batch_idx=torch.tensor([0, 5]).int()),
        ValueError,
        "cache_batch_idx: holds 5",
    ),
    "rows": (
        dict(cache_batch_idx=torch.tensor([3]).int()),
        ValueError,
        "cache_batch_idx: must have",
    ),
    "angles": (
        dict(rotary_cos=torch.ones(11, 8), rotary_sin=torch.ones(11, 8)),
        ValueError,
        "rotary_cos: has 11 positions",
    ),
    "halves": (
        dict(rotary_cos=torch.ones(32, 8), rotary_sin=torch.ones(32, 4)),
        ValueError,
        "rotary_cos, rotary_sin: have shapes",
    ),
    "page": (
        dict(block_table=torch.tensor([[0], [-1]]).int()),
        ValueError,
        "block_table: holds -1",
    ),
    "table": (dict(block_table=torch.tensor([[0], [1]])), ValueError, "block_table: dtype int64"),
    "table's dtype": (dict(block_table=torch.ones(2, 1).bfloat16()), ValueError, "block_table: is"),
    "rows' dtype": (dict(cache_batch_idx=torch.tensor([0.0, 1.5])), ValueError, "cache_batch_idx: is"),
    "q's axes": (dict(q=torch.tensor(1.0)), ValueError, "q: has 0 axes"),
    "too long": (dict(cache_seqlens=2**70), ValueError, "cache_seqlens: 1180591620717411303424 does not fit"),
    "slopes": (dict(alibi_slopes=[1.0]), TypeError, "alibi_slopes: a list"),
    "gone": (dict(v=_without_memory(2, 3, 2, 16)), ValueError, "v: its memory was given back"),
}


@pytest.mark.parametrize("is_known", [False, True], ids=["first", "known"])
@pytest.mark.parametrize("change, kind, words", REFUSED_CALLS.values(), ids=REFUSED_CALLS)
def test_a_cache_is_not_written_to_by_a_call_that_is_refused(draw, change, kind, words, is_known):
    call = {"q": draw(2, 3, 4, 16), "k": draw(2, 3, 2, 16), "v": draw(2, 3, 2, 16)}
    call |= {"k_cache": torch.ones(2, 32, 2, 16), "v_cache": torch.ones(2, 32, 2, 16)}
    call["cache_seqlens"] = torch.tensor([4, 9], dtype=torch.int32)
    if is_known:  # the same call was good before
        flash_attn.flash_attn_with_kvcache(**call)
        call |= {"k_cache": torch.ones(2, 32, 2, 16), "v_cache": torch.ones(2, 32, 2, 16)}
    call |= change
    with pytest.raises(kind) as error:
        flash_attn.flash_attn_with_kvcache(**call)
    assert str(error.value).startswith(words) and str(error.value).endswith("."), str(error.value)
    assert call["k_cache"].eq(1).all() and call["v_cache"].eq(1).all()


def test_entries_of_a_table_that_no_key_needs_may_hold_anything(draw):
    q, k = draw(2, 1, 4, 16), draw(2, 1, 2, 16)
    pages, table = torch.zeros(4, 16, 2, 16), torch.tensor([[0, 1], [2, -1]], dtype=torch.int32)
    lengths = torch.tensor([20, 15], dtype=torch.int32)
    flash_attn.flash_attn_with_kvcache(
        q, pages, pages.clone(), k, k, cache_seqlens=lengths, block_table=table
    )
    assert torch.equal(pages[1, 4], k[0, 0]) and torch.equal(pages[2, 15], k[1, 0])


@pytest.mark.parametrize("window", [3, (None, 0), (1,), (1, 2, 3), (1.5, 0), "ab"])
def test_a_window_that_is_no_pair_of_whole_numbers_is_named(qkv, window):
    for interface in (fa2, fa3):
        with pytest.raises(ValueError, match="^window_size: is .*are needed, -1 for a side"):
            interface.flash_attn_func(*qkv, window_size=window)


@pytest.mark.parametrize("page_size", [1, 16, 19])
def test_pages_of_any_size(draw, page_size):
    q, count = draw(2, 1, 4, 16).detach(), -(-38 // page_size)
    pages_k, pages_v = (draw(2 * count, page_size, 2, 16).detach() for _ in range(2))
    table = (
        torch.randperm(2 * count, generator=torch.Generator().manual_seed(0)).view(2, count).int()
    )
    lengths = torch.tensor([30, 7], dtype=torch.int32)
    new_k, new_v = draw(2, 1, 2, 16).detach(), draw(2, 1, 2, 16).detach()
    out = flash_attn.flash_attn_with_kvcache(
        q, pages_k, pages_v, new_k, new_v, cache_seqlens=lengths, block_table=table
    )
    for b, length in enumerate((30, 7)):
        keys, values = (
            pages[table[b].long()].flatten(0, 1)[None, : length + 1] for pages in (pages_k, pages_v)
        )
        assert torch.equal(keys[0, -1], new_k[b, 0]) and torch.equal(values[0, -1], new_v[b, 0])
        close(out[b : b + 1], torch_formula.attention(q[b : b + 1], keys, values)[0])
    with pytest.raises(RuntimeError, match="block_table"):
        flash_attn.flash_attn_with_kvcache(
            q, pages_k, pages_v, new_k, new_v, cache_seqlens=lengths + 30, block_table=table
        )


def test_one_side_end_to_end_and_the_other_padded(draw):
    q, k, v = draw(7, 4, 16), draw(2, 9, 2, 16), draw(2, 9, 2, 16)
    starts, used = (
        torch.tensor([0, 3, 7], dtype=torch.int32),
        torch.tensor([5, 9], dtype=torch.int32),
    )
    out = fa3.flash_attn_varlen_func(q, k, v, starts, None, 4, 9, seqused_k=used, causal=True)
    for b, (rows, count) in enumerate(((slice(0, 3), 5), (slice(3, 7), 9))):
        visible = shown(rows.stop - rows.start, count, causal=True)
        close(
            out[None, rows],
            torch_formula.attention(
                q[None, rows], k[b : b + 1, :count], v[b : b + 1, :count], visible=visible
            )[0],
        )


def test_partial_results_are_combined(draw):
    parts, lses = draw(3, 2, 5, 4, 16).detach(), draw(3, 2, 5, 4).detach()
    lses[0, 1] = -torch.inf
    out, lse = fa3.flash_attn_combine(parts, lses)
    close(out, (lses.double().softmax(0)[..., None] * parts).sum(0))
    close(lse, lses.double().logsumexp(0))


def test_the_layer_below(qkv, draw):
    q, k, v = (tensor.detach() for tensor in qkv)
    dout = draw(2, 5, 4, 16).detach()
    out, lse, _, rng = fa2._flash_attn_forward(q, k, v, 0.2, None, True)
    grads = [torch.full_like(tensor, torch.nan) for tensor in (q, k, v)]
    product = fa2._flash_attn_backward(
        dout, q, k, v, out, lse, *grads, 0.2, None, True, rng_state=rng
    )
    close(product, (dout.double() * out).sum(-1).transpose(1, 2))
    made = flash_attn_2_cuda.bwd(
        dout,
        q,
        k,
        v,
        out,
        lse,
        None,
        None,
        None,
        None,
        0.2,
        None,
        True,
        -1,
        -1,
        0.0,
        False,
        None,
        rng,
    )
    for one, other in zip(grads, made, strict=False):
        assert torch.equal(one, other)
    written = torch.empty_like(out)
    torch.manual_seed(0)
    first = flash_attn_2_cuda.fwd(q, k, v, written, None, 0.2, None, True, -1, -1, 0.0, False, None)
    assert first[0] is written and first[3].shape == (2,)
    with pytest.raises(RuntimeError, match="`generator` argument is no longer supported"):
        flash_attn_2_cuda.fwd(
            q, k, v, None, None, 0.0, None, False, -1, -1, 0.0, False, torch.Generator()
        )
    plain, plain_lse, *_ = fa3._flash_attn_forward(q, k, v, causal=True)
    fa3._flash_attn_backward(dout, q, k, v, plain, plain_lse, dq=grads[0], is_causal=True)
    flash_attn.flash_attn_func(*qkv, causal=True).backward(dout)
    close(grads[0], qkv[0].grad)


def test_what_is_not_supported_is_refused_by_name(qkv):
    q, k, v = qkv
    for name, call in {
        "qv": lambda: fa3.flash_attn_func(q, k, v, qv=q),
        "leftpad_k": lambda: fa2._flash_attn_varlen_forward(
            q, k, v, None, None, 5, 7, 0.0, None, False, leftpad_k=q
        ),
    }.items():
        with pytest.raises(NotImplementedError, match=f"^{name}"):
            call()
    with pytest.raises(ValueError, match="^kv: is"):
        flash_attn.flash_attn_kvpacked_func(q, k)


INSTALLED = """
import sys
sys.path.insert(0, {path!r})
import sirdar.compat
sirdar.compat.install()
import flash_attn, flash_attn_2_cuda, flash_attn_interface, flash_attn_config
from flash_attn import flash_attn_func, __version__
from flash_attn.bert_padding import pad_input, unpad_input
from flash_attn.layers.rotary import apply_rotary_emb
from flash_attn.flash_attn_interface import flash_attn_cuda, flash_attn_gpu, FlashAttnFunc, _flash_attn_varlen_backward
import importlib.metadata, importlib.util
assert importlib.metadata.version("flash_attn") == importlib.metadata.version("flash-attn") == __version__
assert importlib.util.find_spec("flash_attn") and importlib.util.find_spec("flash_attn_interface")
assert flash_attn_cuda is flash_attn_gpu is flash_attn_2_cuda and flash_attn_func.__module__.startswith("sirdar.compat")
sirdar.compat.uninstall()
assert importlib.util.find_spec("flash_attn") is None
"""


def test_installed_it_is_what_import_flash_attn_finds():
    package = pathlib.Path(sirdar.compat.__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", INSTALLED.format(path=str(package))], check=True, timeout=60
    )


def test_another_flash_attn_is_not_replaced_silently(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", type(sys)("flash_attn"))
    with pytest.raises(RuntimeError, match="^flash_attn: was imported from"):
        sirdar.compat.install()
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("flash_attn_3")
