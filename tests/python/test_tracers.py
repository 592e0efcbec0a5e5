"""What records operators sees attention's: torch.jit.trace, make_fx, dispatch modes, fake tensors; also where the same call was
computed before, by a shorter way."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import sirdar.torch
from sirdar.compat import flash_attn, flash_attn_interface as fa3
from sirdar.compat.flash_attn.flash_attn_interface import FlashAttnFunc


def in_context(q, k, v):
    with sirdar.torch.sdpa():
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def heads_first(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return sirdar.torch.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


CALLS = {
    "attention": lambda q, k, v: sirdar.torch.attention(q, k, v, causal=True),
    "score_mod": lambda q, k, v: sirdar.torch.attention(q, k, v, causal=True, score_mod="score - 0.0 * k"),
    "scaled_dot_product_attention": heads_first,
    "sdpa": in_context,
    "flash_attn": lambda q, k, v: flash_attn.flash_attn_func(q, k, v, causal=True),
    "FlashAttention-3": lambda q, k, v: fa3.flash_attn_func(q, k, v, causal=True),
    "FlashAttnFunc": lambda q, k, v: FlashAttnFunc.apply(q, k, v, 0.0, None, True, (-1, -1), 0.0, None, False, False, True),
}


def draw(seed=0, requires_grad=False):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 7, 4, 16), (2, 7, 2, 16), (2, 7, 2, 16))
    return [torch.randn(shape, generator=generator, requires_grad=requires_grad) for shape in shapes]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_was_traced_computes(call):
    given, others = draw(), draw(1)
    for _ in range(3):  # the way of a call that is known is another one
        wanted = call(*others)
    for made in (
        torch.jit.trace(call, given, check_trace=False),
        make_fx(call)(*given),
        make_fx(call, tracing_mode="fake")(*given),
        make_fx(call, tracing_mode="symbolic")(*given),
    ):
        torch.testing.assert_close(made(*others), wanted)


@pytest.mark.parametrize("heads_k, heads_v", [(4, 4), (1, 4), (4, 1), (1, 1)])
def test_heads_that_are_symbols(heads_k, heads_v):
    def call(query, key, value):
        return sirdar.torch.scaled_dot_product_attention(query, key, value, is_causal=True)

    given, others = ([torch.randn(2, heads, 7, 16) for heads in (4, heads_k, heads_v)] for _ in range(2))
    made = make_fx(call, tracing_mode="symbolic")(*given)
    torch.testing.assert_close(made(*others), torch.nn.functional.scaled_dot_product_attention(*others, is_causal=True))
    for wrong in ((3, 4, 4), (4, 3, 4), (4, 4, 3), (4, 2, 1), (1, 4, 3)):
        with pytest.raises(ValueError, match="^query, key, value: have .* heads"):
            make_fx(call, tracing_mode="symbolic")(*(torch.randn(2, heads, 7, 16) for heads in wrong))


def test_functions_that_are_no_operators_are_refused():
    given = draw()
    out, lse = sirdar.attention(*given, return_lse=True)
    plan = sirdar.plan(*given)
    written = torch.zeros_like(out)
    calls = [
        lambda q, k, v: sirdar.attention(q, k, v),
        lambda q, k, v: sirdar.attention(q, k, v, out=written),
        lambda q, k, v: sirdar.decode(q, k, v),
        lambda q, k, v: sirdar.backward(out, q, k, v, out, lse).dq,
        lambda q, k, v: sirdar.merge(q, lse, q, lse)[0],
        lambda q, k, v: plan(q, k, v),
        lambda q, k, v: plan(q, k, v, out=written),
        lambda q, k, v: plan.run(q=q, k=k, v=v),
    ]
    for call in calls:
        for _ in range(3):
            call(*given)
        written.zero_()
        for trace in (lambda call: torch.jit.trace(call, given, check_trace=False), lambda call: make_fx(call)(*given)):
            with pytest.raises(NotImplementedError, match="^(q|out_a): torch records operators here"):
                trace(call)
        assert written.eq(0).all()
        with Names():
            call(*given)


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_modes_see_the_operator(call, requires_grad):
    given = draw(requires_grad=requires_grad)
    for _ in range(3):
        call(*given)
    with Names() as seen:
        call(*given)
    assert "sirdar.forward.default" in seen.names


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_checkpoint_may_keep_what_attention_computed(call):
    seen = []

    def policy(context, operator, *_, **__):
        seen.append(str(operator))
        return CheckpointPolicy.MUST_SAVE if "sirdar" in str(operator) else CheckpointPolicy.PREFER_RECOMPUTE

    given = draw(requires_grad=True)
    wanted = torch.autograd.grad(call(*given).sin().sum(), given)
    contexts = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
    out = checkpoint(call, *given, use_reentrant=False, context_fn=contexts)
    for one, other in zip(torch.autograd.grad(out.sin().sum(), given), wanted):
        torch.testing.assert_close(one, other)
    assert "sirdar.forward.default" in seen


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_batch_of_gradients_is_refused(call):
    given = draw(requires_grad=True)
    out = call(*given)
    with pytest.raises(NotImplementedError, match=r"^sirdar: a batch of gradients came in"):
        torch.autograd.grad(out, given, torch.ones(3, *out.shape), is_grads_batched=True)
    with pytest.raises(NotImplementedError, match=r"use torch.func.vmap over torch.func.vjp"):
        torch.autograd.functional.jacobian(lambda q: call(q, *given[1:]).sum((1, 2, 3)), given[0], vectorize=True)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_products_are_counted(call):
    given = draw(requires_grad=True)
    for _ in range(2):
        call(*given)
    with FlopCounterMode(display=False) as counter:
        out = call(*given)
        assert counter.get_total_flops() == 2 * 2 * 4 * 7 * 7 * (16 + 16)
        out.sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 4 * 7 * 7 * (2 * 16 + 5 * 16)


def test_products_of_sequences_are_counted():
    ends, pages = torch.tensor([0, 3, 10]).int(), torch.randn(8, 4, 2, 8)
    table, used = torch.zeros(2, 4).int(), torch.tensor([5, 9]).int()
    q, k, v = torch.randn(10, 4, 16), torch.randn(10, 2, 16), torch.randn(10, 2, 24)
    calls = [
        (lambda: sirdar.torch.attention_varlen(q, k, v, ends, ends, 7, 7), (3 * 3 + 7 * 7) * (16 + 24)),
        (lambda: flash_attn.flash_attn_varlen_func(q, k, v, ends, ends, 9, 9, causal=True), (3 * 3 + 7 * 7) * (16 + 24)),
        (lambda: flash_attn.flash_attn_with_kvcache(torch.ones(2, 3, 4, 8), pages, pages, block_table=table, cache_seqlens=used),
         3 * (5 + 9) * (8 + 8)),
        (lambda: sirdar.torch.attention(torch.ones(2, 3, 4, 8), pages[:2], pages[:2], seqused_k=used - 5), 3 * 4 * (8 + 8)),
    ]  # fmt: skip
    for call, wanted in calls:
        with FlopCounterMode(display=False) as counter:
            call()
        assert counter.get_total_flops() == 2 * 4 * wanted
    with FakeTensorMode(), FlopCounterMode(display=False) as counter:  # which know the longest
        sirdar.torch.attention_varlen(*(torch.ones(x.shape) for x in (q, k, v)), torch.ones(3).int(), torch.ones(3).int(), 7, 7)
    assert counter.get_total_flops() == 2 * 4 * 2 * 7 * 7 * (16 + 24)


def test_tensors_without_data_have_shapes():
    with FakeTensorMode():
        for call in CALLS.values():
            out = call(*draw(requires_grad=True))
            assert out.shape == (2, 7, 4, 16)
            out.sum().backward()
        q, new, cache, pages = (torch.randn(shape) for shape in ((2, 1, 4, 16), (2, 1, 2, 16), (2, 32, 2, 16), (8, 8, 2, 16)))
        lengths, table, rows = torch.ones(2).int(), torch.zeros(2, 4).int(), torch.zeros(2).int()
        calls = [
            ((cache, cache.clone()), {}),
            ((cache, cache.clone(), new, new), {}),
            ((cache, cache.clone(), new, new), {"cache_batch_idx": rows, "cache_leftpad": rows}),
            ((pages, pages.clone(), new, new), {"block_table": table}),
            ((pages, pages.clone(), new, new), {"block_table": table, "cache_batch_idx": rows}),
            ((cache, cache.clone(), new, new), {"rotary_cos": torch.ones(32, 8), "rotary_sin": torch.ones(32, 8)}),
        ]
        for given, more in calls:
            for module in (flash_attn, fa3):
                more = {"page_table" if module is fa3 and name == "block_table" else name: x for name, x in more.items()}
                out = module.flash_attn_with_kvcache(q, *given, cache_seqlens=lengths, causal=True, **more)
                assert out.shape == (2, 1, 4, 16)
