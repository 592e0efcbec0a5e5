"""FlashAttention-3: 8-bit inputs with their scales, decoding of sequences end to end, its operators."""

import pytest
import torch
import torch_formula

import sirdar.compat
from sirdar.compat import flash_attn, flash_attn_interface as fa3
from sirdar.compat.flash_attn import bert_padding
from sirdar.compat.flash_attn.layers.rotary import (
    RotaryEmbedding, apply_rotary_emb, apply_rotary_emb_kv_, apply_rotary_emb_qkv_, apply_rotary_emb_torch,
)  # fmt: skip
from torch_formula import close, shown


@pytest.fixture
def draw():
    generator = torch.Generator().manual_seed(11)
    return lambda *shape: torch.randn(*shape, generator=generator)


def starts_of(*lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("form", ["dense", "ragged", "cache"])
def test_scales_of_q_k_and_v(draw, form, softcap):
    q, k, v = draw(2, 5, 4, 16), draw(2, 7, 2, 16), draw(2, 7, 2, 16)
    scales = [draw(2, 2).abs() + 0.1 for _ in range(3)]
    names = dict(zip(("q_descale", "k_descale", "v_descale"), scales))
    wide = [scale[:, None, :, None] for scale in scales]
    wanted, wanted_lse = torch_formula.attention(
        q * wide[0].repeat_interleave(2, 2), k * wide[1], v * wide[2], softcap=softcap,
        visible=shown(5, 7, causal=True),
    )  # fmt: skip
    options = names | {"causal": True, "softcap": softcap}
    if form == "dense":
        out, lse = fa3.flash_attn_func(q, k, v, return_attn_probs=True, **options)
    elif form == "ragged":
        out, lse = fa3.flash_attn_varlen_func(
            q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), starts_of(5, 5), starts_of(7, 7), 5, 7,
            return_attn_probs=True, **options,
        )  # fmt: skip
        out, lse = out.view(2, 5, 4, 16), lse.view(4, 2, 5).transpose(0, 1)
    else:
        out, lse, *_ = fa3.flash_attn_with_kvcache(q, k, v, return_softmax_lse=True, **options)
    close(out, wanted)
    close(lse, wanted_lse)
    with pytest.raises(ValueError, match=r"^v_descale: has shape \(3,\)"):
        fa3.flash_attn_func(q, k, v, v_descale=torch.ones(3))


def test_eight_bits_have_results_and_no_gradients(draw):
    q, k, v = (draw(1, 5, 2, 16).to(torch.float8_e4m3fn) for _ in range(3))
    wanted, _ = torch_formula.attention(q.float(), k.float(), v.float())
    out = fa3.flash_attn_func(*(x.requires_grad_() for x in (q, k, v)))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), wanted.float(), atol=1e-2, rtol=2e-2)
    with pytest.raises(NotImplementedError, match="^q: torch.float8_e4m3fn has no backward pass"):
        out.sum().backward()


def new_tokens(draw, count_q, count_k):
    """q, k, v end to end with their prefix sums."""
    q, k, v = draw(sum(count_q), 4, 16), draw(sum(count_k), 2, 16), draw(sum(count_k), 2, 16)
    return q, k, v, starts_of(*count_q), starts_of(*count_k)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("paged", [False, True])
def test_decoding_of_sequences_end_to_end(draw, paged, causal):
    q, k, v, starts_q, starts_k = new_tokens(draw, (3, 1, 4), (2, 1, 3))
    lengths, rows = torch.tensor([10, 0, 20]).int(), torch.tensor([4, 0, 2]).int()
    pad, turns = torch.tensor([2, 0, 5]).int(), torch.tensor([7, 3, 0]).int()
    angles = torch.arange(40)[:, None] * torch.tensor([1.0, 0.3, 0.1])
    if paged:  # five sequences of four pages of eight
        table = torch.randperm(20, generator=torch.Generator().manual_seed(0)).view(5, 4).int()
        pages_k, pages_v = draw(20, 8, 2, 16), draw(20, 8, 2, 16)
        given, more = (pages_k, pages_v), {"page_table": table}
        cache_k, cache_v = (pages[table.long()].flatten(1, 2) for pages in given)
    else:
        given, more = (draw(5, 32, 2, 16), draw(5, 32, 2, 16)), {}
        cache_k, cache_v = (cache.clone() for cache in given)
    out, lse, *_ = fa3.flash_attn_with_kvcache(
        q, *given, k, v, rotary_cos=angles.cos(), rotary_sin=angles.sin(), cache_seqlens=lengths,
        cache_batch_idx=rows, cache_leftpad=pad, cu_seqlens_q=starts_q, cu_seqlens_k_new=starts_k,
        max_seqlen_q=4, rotary_seqlens=turns, causal=causal, return_softmax_lse=True, **more,
    )  # fmt: skip
    assert lse.shape == (4, 8)
    for b, (length, row) in enumerate(zip(lengths.tolist(), rows.tolist())):
        part, new = (slice(*starts[b : b + 2].tolist()) for starts in (starts_q, starts_k))
        count, turn = new.stop - new.start, turns[b].item()
        tables = angles.cos(), angles.sin()
        turned_k = apply_rotary_emb(k[None, new], *tables, True, seqlen_offsets=turn)
        if causal:
            turned_q = apply_rotary_emb(q[None, part], *tables, True, seqlen_offsets=turn)
        else:
            turned_q = apply_rotary_emb(q[part, None], *tables, True, seqlen_offsets=turn)[
                None, :, 0
            ]
        cache_k[row, length : length + count] = turned_k[0]
        cache_v[row, length : length + count] = v[new]
        keys = slice(pad[b].item(), length + count)
        size_q, size_k = part.stop - part.start, keys.stop - keys.start
        one, two = torch_formula.attention(
            turned_q, cache_k[row : row + 1, keys], cache_v[row : row + 1, keys],
            visible=shown(size_q, size_k, causal=causal),
        )  # fmt: skip
        close(out[None, part], one)
        close(lse[None, :, part], two)
    for cache, wanted in zip(given, (cache_k, cache_v)):
        close(cache[table.long()].flatten(1, 2) if paged else cache, wanted)


BAD_STARTS = {
    "dtype": torch.tensor([0, 3, 4]),
    "first": torch.tensor([1, 3, 4]).int(),
    "last": torch.tensor([0, 3, 5]).int(),
    "falls": torch.tensor([0, 5, 4]).int(),
    "count": torch.tensor([0, 1, 2, 4]).int(),
}


@pytest.mark.parametrize("starts", BAD_STARTS.values(), ids=BAD_STARTS)
def test_wrong_prefix_sums_write_nothing(draw, starts):
    q, k, v, starts_q, starts_k = new_tokens(draw, (3, 1), (3, 1))
    caches = torch.ones(2, 8, 2, 16), torch.ones(2, 8, 2, 16)
    lengths = torch.tensor([0, 3]).int()
    for name in ("cu_seqlens_q", "cu_seqlens_k_new"):
        call = {"cu_seqlens_q": starts_q, "cu_seqlens_k_new": starts_k} | {name: starts}
        with pytest.raises(ValueError, match="^(cu|cache)_seqlens"):
            fa3.flash_attn_with_kvcache(
                q, *caches, k, v, cache_seqlens=lengths, max_seqlen_q=3, **call
            )
    table = torch.arange(2).int().view(2, 1)
    for wrong in (-1, 2):
        with pytest.raises(
            ValueError, match=f"^cache_batch_idx: holds {wrong}; numbers from 0 to 1"
        ):
            fa3.flash_attn_with_kvcache(
                q, *caches, k, v, cache_seqlens=lengths, max_seqlen_q=3, cu_seqlens_q=starts_q,
                cu_seqlens_k_new=starts_k, page_table=table, cache_batch_idx=torch.tensor([0, wrong]).int(),
            )  # fmt: skip
    assert all(cache.eq(1).all() for cache in caches)


def test_operators(draw):
    sirdar.compat.install()
    q, k, v = draw(2, 5, 4, 16), draw(2, 7, 2, 16), draw(2, 7, 2, 16)
    operators = torch.ops.flash_attn_3
    out, lse, *_ = operators.fwd(q, k, v, is_causal=True, window_size_left=3, softcap=2.0)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    wanted, wanted_lse = fa3.flash_attn_func(
        *leaves, causal=True, window_size=(3, -1), softcap=2.0, return_attn_probs=True
    )
    assert torch.equal(out, wanted) and torch.equal(lse, wanted_lse)
    dout, dq = draw(2, 5, 4, 16), torch.empty_like(q)
    grads = operators.bwd(
        dout, q, k, v, out, lse, dq=dq, is_causal=True, window_size_left=3, softcap=2.0
    )
    wanted.backward(dout)
    assert torch.equal(dq, grads[0]) and len(grads) == 8
    for grad, leaf in zip(grads, leaves):
        assert torch.equal(grad, leaf.grad)
    close(grads[3], (dout.double() * out).sum(-1).transpose(1, 2))
    # A cache, whose tables are turned as halves where it is not said otherwise.
    angles = torch.arange(20)[:, None] * torch.tensor([1.0, 0.3])
    lengths = torch.tensor([4, 2]).int()
    caches = [(k.clone(), v.clone()) for _ in range(2)]
    tables = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()}
    made = operators.fwd(q[:, :1], *caches[0], k[:, :1], v[:, :1], seqused_k=lengths, **tables)
    wanted = fa3.flash_attn_with_kvcache(
        q[:, :1],
        *caches[1],
        k[:, :1],
        v[:, :1],
        cache_seqlens=lengths,
        rotary_interleaved=False,
        **tables,
    )
    assert torch.equal(made[0], wanted) and torch.equal(caches[0][0], caches[1][0])
    parts, lses = draw(2, 1, 3, 4, 16), draw(2, 1, 3, 4)
    close(operators.fwd_combine(parts, lses)[0], fa3.flash_attn_combine(parts, lses)[0])
    # All that FlashAttention's schemas, whose results alias arguments, let torch ask for.
    for operator, given in (
        (operators.fwd, (q, k, v)),
        (operators.bwd, (dout, q, k, v, out, lse)),
        (operators.fwd_combine, (parts, lses)),
    ):
        torch.library.opcheck(
            operator.default,
            given,
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )
    sirdar.compat.uninstall()


def turned_by_hand(x, cos, sin, interleaved):
    """In float64, pair by pair."""
    wanted, half = x.double().clone(), cos.shape[-1]
    for i in range(half):
        one, two = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        c, s = cos[:, None, i].double(), sin[:, None, i].double()
        wanted[..., one] = x[..., one] * c - x[..., two] * s
        wanted[..., two] = x[..., one] * s + x[..., two] * c
    return wanted


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embeddings(draw, interleaved):
    angles = draw(9, 3)
    cos, sin = angles.cos(), angles.sin()
    x, qkv, grouped = draw(2, 6, 4, 8), draw(2, 6, 3, 4, 8), draw(2, 6, 8, 8)
    wanted = turned_by_hand(x, cos[3:], sin[3:], interleaved)
    close(apply_rotary_emb_torch(x, cos[3:], sin[3:], interleaved), wanted)
    for inplace in (False, True):
        leaf = x.clone().requires_grad_()
        out = apply_rotary_emb(leaf, cos, sin, interleaved, inplace, seqlen_offsets=3)
        close(out, wanted)
        close(leaf, wanted if inplace else x)
        out.backward(out.detach())
        close(leaf.grad, x)  # turning is undone by turning back
    leaf = qkv.clone().requires_grad_()
    out = apply_rotary_emb_qkv_(leaf, cos, sin, None, None, interleaved, torch.tensor([3, 1]))
    for b, first in ((0, 3), (1, 1)):
        for part in range(2):
            tables = cos[first : first + 6], sin[first : first + 6]
            wanted = turned_by_hand(qkv[b : b + 1, :, part], *tables, interleaved)
            close(out[b : b + 1, :, part], wanted)
    assert torch.equal(out[:, :, 2], qkv[:, :, 2])
    out.backward(out.detach())
    close(leaf.grad, qkv)
    out = apply_rotary_emb_qkv_(
        grouped.clone(), cos, sin, interleaved=interleaved, seqlen_offsets=3, num_heads_q=4
    )
    close(out[:, :, :6], turned_by_hand(grouped[:, :, :6], cos[3:], sin[3:], interleaved))
    assert torch.equal(out[:, :, 6:], grouped[:, :, 6:])
    kv = apply_rotary_emb_kv_(qkv[:, :, :2].clone(), cos, sin, interleaved, 3)
    close(kv[:, :, 0], turned_by_hand(qkv[:, :, 0], cos[3:], sin[3:], interleaved))
    assert torch.equal(kv[:, :, 1], qkv[:, :, 1])


def test_the_rotary_module(draw):
    qkv, kv = draw(2, 6, 3, 4, 8), draw(2, 6, 2, 4, 8)
    angles = torch.outer(torch.arange(8.0), 100.0 ** -torch.tensor([0.0, 2 / 6, 4 / 6]))
    module = RotaryEmbedding(6, base=100.0).half()  # its angles stay those of fp32
    out = module(qkv.clone(), seqlen_offset=2)
    for part in range(2):
        close(
            out[:, :, part],
            turned_by_hand(qkv[:, :, part], angles.cos()[2:], angles.sin()[2:], False),
        )
    q, made = module(qkv[:, :, 0].clone(), kv.clone(), seqlen_offset=torch.tensor([2, 2]))
    assert torch.equal(q, out[:, :, 0]) and torch.equal(made[:, :, 1], kv[:, :, 1])
    # XPos: what q gains k loses, so a product depends on the distance alone.
    module = RotaryEmbedding(8, scale_base=16.0)
    same = draw(1, 1, 1, 1, 8).expand(1, 6, 3, 1, 8).clone()
    q, k, _ = module(same).unbind(2)
    products = torch.einsum("bqhd,bkhd->qk", q, k)
    close(products[2, 0].expand(4), products.diagonal(-2))
    with pytest.raises(ValueError, match="^max_seqlen: is needed"):
        RotaryEmbedding(8)(qkv, seqlen_offset=torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="^num_heads_q: is needed"):
        apply_rotary_emb_qkv_(qkv[:, :, 0], angles, angles)


def test_rows_of_several_sequences():
    tokens = torch.arange(12.0).view(2, 6, 1)
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]])
    rows, indices, starts, longest = bert_padding.unpad_input_for_concatenated_sequences(
        tokens, lengths
    )
    assert rows.flatten().tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert starts.tolist() == [0, 2, 5, 11] and longest == 6
    assert torch.equal(bert_padding.pad_input(rows, indices, 2, 6)[0, :5], tokens[0, :5])
    part, whole = bert_padding.index_first_axis_residual(rows, torch.tensor([0, 10]))
    assert part.flatten().tolist() == [0, 11] and whole is rows


def test_a_single_part_without_keys_is_zero(draw):
    parts, lses = torch.full((1, 2, 3, 4, 16), torch.nan), torch.full((1, 2, 3, 4), -torch.inf)
    parts[0, 1], lses[0, 1] = draw(3, 4, 16), 0.5
    out, lse = fa3.flash_attn_combine(parts, lses)
    assert out[0].eq(0).all() and torch.equal(out[1], parts[0, 1]) and torch.equal(lse, lses[0])


@pytest.mark.parametrize("causal", [False, True])
def test_chunks_are_counted_from_the_left_padding(draw, causal):
    q, cache = draw(2, 6, 4, 16), draw(2, 24, 2, 16)
    lengths, pad = torch.tensor([20, 9]).int(), torch.tensor([3, 7]).int()
    out = fa3.flash_attn_with_kvcache(
        q, cache, cache, cache_seqlens=lengths, cache_leftpad=pad, causal=causal, attention_chunk=4,
        window_size=(3, 2),
    )  # fmt: skip
    for b, (length, first) in enumerate(zip(lengths.tolist(), pad.tolist())):
        keys, count = cache[b : b + 1, first:length], length - first
        rows = torch.arange(6)[:, None] + count - 6
        same_chunk = rows.div(4, rounding_mode="floor") == torch.arange(count) // 4
        visible = shown(6, count, causal, 3, 2) & same_chunk
        close(out[b : b + 1], torch_formula.attention(q[b : b + 1], keys, keys, visible=visible)[0])


def test_compiled_whole_and_mapped(draw):
    def step(q, k_cache, v_cache, k, v, scale):
        caches = k_cache.clone(), v_cache.clone()
        lengths, starts = torch.tensor([3, 4]).int(), torch.tensor([0, 1, 2]).int()
        out = fa3.flash_attn_with_kvcache(
            q, *caches, k, v, cache_seqlens=lengths, causal=True, cu_seqlens_q=starts, max_seqlen_q=1,
            cu_seqlens_k_new=starts, q_descale=scale,
        )  # fmt: skip
        return out, *caches

    cache, new, scale = draw(2, 9, 2, 16), draw(2, 2, 16), draw(2, 2).abs()
    arguments = draw(2, 4, 16), cache, cache.flip(1), new, new + 1, scale
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for one, other in zip(compiled(*arguments), step(*arguments), strict=True):
        assert torch.equal(one, other)
    many = draw(3, 2, 5, 4, 16)
    mapped = torch.func.vmap(lambda q: fa3.flash_attn_func(q, q, q, causal=True))(many)
    for one, other in zip(mapped, many):
        assert torch.equal(one, fa3.flash_attn_func(other, other, other, causal=True))


def test_pages_have_results_and_no_gradients(draw):
    q, pages = draw(3, 4, 16).requires_grad_(), draw(4, 8, 2, 16).requires_grad_()
    table, starts = torch.tensor([[2, 0]]).int(), (starts_of(3), starts_of(11))
    out = flash_attn.flash_attn_varlen_func(
        q, pages, pages, *starts, 3, 11, causal=True, block_table=table
    )
    keys = pages[table[0].long()].flatten(0, 1)[None, :11]
    close(
        out[None],
        torch_formula.attention(q[None], keys, keys, visible=shown(3, 11, causal=True))[0],
    )
    with pytest.raises(
        NotImplementedError, match="^block_table: attention over pages has no backward"
    ):
        out.sum().backward()
