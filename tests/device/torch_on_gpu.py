"""What sirdar.torch and the flash-attn interfaces do on a GPU, against float64; models are in models_on_gpu.py.

usage: PYTHONPATH=python python3 tests/device/torch_on_gpu.py [arguments of checks.py]
"""

import sys

import sirdar
import sirdar.compat

sirdar.compat.install()

import torch  # noqa: E402
from checks import check, check_of_gpu, draw, exact, main, ours, within  # noqa: E402
from flash_attn import flash_attn_func, flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache  # noqa: E402
from flash_attn import flash_attn_interface  # noqa: E402
from flash_attn.bert_padding import pad_input, unpad_input  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import sirdar.torch  # noqa: E402


@check
def forward(device):
    q, k, v = (draw(device, 2, 4, 513, 64, grad=False) for _ in range(3))
    out = sirdar.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    return within([out], exact(q, k, v, is_causal=True)[:1])


@check
def forward_and_backward(device):
    q, k, v = (draw(device, 2, 4, 513, 64) for _ in range(3))
    return within(ours(q, k, v, is_causal=True), exact(q, k, v, is_causal=True))


@check
def groups_of_heads(device):
    q, k, v = (
        draw(device, 2, 8, 300, 128),
        draw(device, 2, 2, 300, 128),
        draw(device, 2, 2, 300, 128),
    )
    return within(ours(q, k, v, enable_gqa=True), exact(q, k, v, enable_gqa=True))


@check
def masks(device):
    q, k, v = (draw(device, 2, 4, 200, 64) for _ in range(3))
    shown = (torch.rand(2, 1, 200, 200, device=device) > 0.4).logical_or(
        torch.eye(200, device=device).bool()
    )
    return within(ours(q, k, v, attn_mask=shown), exact(q, k, v, attn_mask=shown))


@check
def compiled(device):
    q, k, v = (draw(device, 2, 4, 200, 64) for _ in range(3))
    function = torch.compile(sirdar.torch.scaled_dot_product_attention, fullgraph=True)
    return within(ours(q, k, v, function, is_causal=True), exact(q, k, v, is_causal=True))


@check
def autocast(device):
    q, k, v = (draw(device, 2, 4, 200, 64, dtype=torch.float32) for _ in range(3))
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        results = ours(q, k, v)
    assert results[0].dtype == torch.bfloat16 and results[1].dtype == torch.float32
    return within(results, exact(q, k, v))


@check_of_gpu
def another_stream(device):
    q, k, v = (draw(device, 2, 4, 2048, 64, grad=False) for _ in range(3))
    wanted, stream = exact(q, k, v)[0], torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        late = [
            tensor * 1 for tensor in (q, k, v)
        ]  # made on this stream: another would see too little
        out = sirdar.torch.scaled_dot_product_attention(*late)
    torch.cuda.current_stream().wait_stream(stream)
    return within([out], [wanted])


@check_of_gpu
def graph(device):
    q, k, v = (draw(device, 2, 4, 512, 64, grad=False) for _ in range(3))
    sirdar.torch.scaled_dot_product_attention(q, k, v)  # compiles
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = sirdar.torch.scaled_dot_product_attention(q, k, v)
    for tensor in (q, k, v):
        tensor.copy_(torch.randn_like(tensor))
    captured.replay()
    torch.cuda.synchronize()
    return within([out], exact(q, k, v)[:1])


def definition(q, k, v, bias, sink, slope):
    """(out, lse) in float64 of [batch, seqlen, heads, dim] with a bias, sinks, and ALiBi as an expression."""
    q, k, v, bias, sink, slope = (t.double() for t in (q, k, v, bias, sink, slope))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5 + bias
    rows, keys = (
        torch.arange(q.shape[1], device=q.device),
        torch.arange(k.shape[1], device=q.device),
    )
    scores = scores + slope[:, None, None] * (keys - rows[:, None])
    lse = torch.logaddexp(scores.logsumexp(-1), sink[:, None])
    return torch.einsum("bhqk,bkhd->bqhd", (scores - lse[..., None]).exp(), v), lse


@check
def every_gradient(device):
    q, k, v = (draw(device, 2, 130, 4, 64) for _ in range(3))
    bias, sink = draw(device, 1, 4, 130, 130), draw(device, 4, dtype=torch.float32)
    slope = draw(device, 4, dtype=torch.float32)
    inputs = (q, k, v, bias, sink, slope)
    with torch.no_grad():
        slope /= 8
    made = sirdar.torch.attention(
        q, k, v, bias=bias, sink=sink, score_mod="score + slope[h] * (k - q)",
        tensors={"slope": slope}, return_lse=True,
    )  # fmt: skip
    wanted = definition(*inputs)

    def all_of(out, lse):
        total = out.double().sin().sum() + lse.double().cos().sum()
        return (out, lse, *torch.autograd.grad(total, inputs))

    return within(all_of(*made), all_of(*wanted))


@check
def traced_lambda(device):
    q, k, v = (draw(device, 2, 130, 4, 64, grad=False) for _ in range(3))
    slope = torch.rand(4, device=device)
    text = sirdar.torch.attention(
        q, k, v, score_mod="score + slope[h] * (k - q)", tensors={"slope": slope}
    )
    traced = sirdar.torch.attention(
        q, k, v, score_mod=lambda score, b, h, q, k: score + slope[h] * (k - q)
    )
    zero = torch.zeros(1, 4, 130, 130, device=device)
    wanted = definition(q, k, v, zero, torch.full((4,), -torch.inf, device=device), slope)[0]
    assert torch.equal(text, traced)
    return within([text], [wanted])


@check
def merged(device):
    q, k, v = (draw(device, 2, 200, 4, 64, grad=False) for _ in range(3))
    parts = [
        sirdar.torch.attention(q, k[:, at], v[:, at], return_lse=True)
        for at in (slice(0, 90), slice(90, 200))
    ]
    out, _ = sirdar.torch.merge(*parts[0], *parts[1])
    wanted = exact(*(x.transpose(1, 2) for x in (q, k, v)))[0].transpose(1, 2)
    return within([out], [wanted])


@check
def checkpointed(device):
    q, k, v = (draw(device, 2, 200, 4, 64) for _ in range(3))

    def run(wrap):
        torch.manual_seed(1)
        q.grad = k.grad = v.grad = None
        wrap(
            lambda *a: sirdar.torch.attention(*a, causal=True, dropout_p=0.2)
        ).sin().sum().backward()
        return q.grad, k.grad, v.grad

    plain = run(lambda function: function(q, k, v))
    for reentrant in (False, True):
        again = run(lambda function: checkpoint(function, q, k, v, use_reentrant=reentrant))
        assert all(map(torch.equal, plain, again))
    return "the same bits, dropout included"


@check
def operators(device):
    q, k, v = (draw(device, 2, 40, 2, 32) for _ in range(3))
    nothing = [None] * 2 + [[]] + [None] * 10
    torch.library.opcheck(torch.ops.sirdar.forward.default, (q, k, v, *nothing), {"causal": True})
    with torch.no_grad():
        out, lse, _ = torch.ops.sirdar.forward(q, k, v, *nothing, causal=True)
    torch.library.opcheck(
        torch.ops.sirdar.backward.default,
        (out.clone(), None, out, lse, *(t.detach() for t in (q, k, v)), *nothing),
        {"causal": True},
    )
    return "opcheck passes"


@check
def flash_attn_operators(device):
    """FlashAttention's own operators by name, dense and end to end, and as they stand in a compiled graph."""
    q, k, v = (draw(device, 2, 4, 200, 64) for _ in range(3))
    wanted = exact(q, k, v, is_causal=True)
    rows = [x.detach().transpose(1, 2).contiguous() for x in (q, k, v)]
    operators, masks = torch.ops.flash_attn, (0.0, 64**-0.5, True, -1, -1, 0.0, None)
    out, lse, *_ = operators._flash_attn_forward(*rows, *masks, False)
    dout = out.double().cos().to(out.dtype)
    grads = [torch.empty_like(x) for x in rows]
    backward = (dout, *rows, out, lse, *grads, *masks, True)
    operators._flash_attn_backward(*backward)
    said = within([x.transpose(1, 2) for x in (out, *grads)], wanted)
    starts = torch.tensor([0, 200, 400], dtype=torch.int32, device=device)
    flat, spans = [x.flatten(0, 1) for x in rows], (starts, starts, 200, 200)
    ragged, ragged_lse, *_ = operators._flash_attn_varlen_forward(*flat, *spans, *masks)
    ragged_grads = [torch.empty_like(x) for x in flat]
    operators._flash_attn_varlen_backward(
        dout.flatten(0, 1), *flat, ragged, ragged_lse, *ragged_grads, *spans, *masks, True
    )
    pairs = zip((ragged, *ragged_grads), (out, *grads))
    within(*zip(*((one, other.flatten(0, 1)) for one, other in pairs)))
    later = torch.ops.flash_attn_3._flash_attn_forward(
        *(x.transpose(1, 2) for x in (q, k, v)), causal=True
    )[0]
    made = torch.autograd.grad(later, (q, k, v), later.detach().double().cos().to(later.dtype))
    within([later.transpose(1, 2), *made], wanted)

    def compiled(*rows):
        return flash_attn_interface._wrapped_flash_attn_forward(*rows, *masks, False)[0]

    assert torch.equal(torch.compile(compiled, fullgraph=True)(*rows), out)
    for operator, given in (
        (operators._flash_attn_forward, (*rows, *masks, False)),
        (operators._flash_attn_backward, backward),
        (operators._flash_attn_varlen_forward, (*flat, *spans, *masks)),
    ):
        torch.library.opcheck(operator.default, given)
    return said


@check
def compiled_for_any_length(device):
    function = torch.compile(
        sirdar.torch.scaled_dot_product_attention, fullgraph=True, dynamic=True
    )
    for length in (96, 200, 333):
        q, k, v = (draw(device, 2, 4, length, 64) for _ in range(3))
        said = within(ours(q, k, v, function, is_causal=True), exact(q, k, v, is_causal=True))
    return said


@check
def mapped(device):
    q, k, v = (draw(device, 3, 2, 100, 4, 64, grad=False) for _ in range(3))
    made = torch.func.vmap(lambda *a: sirdar.torch.attention(*a, causal=True))(q, k, v)
    wanted = torch.stack([sirdar.torch.attention(*one, causal=True) for one in zip(q, k, v)])
    return within([made], [wanted])


@check
def routed(device):
    layer = torch.nn.MultiheadAttention(
        128, 4, batch_first=True, device=device, dtype=torch.bfloat16
    )
    x = draw(device, 2, 70, 128)
    wanted = layer(x, x, x, need_weights=False)[0]
    with sirdar.torch.sdpa():
        made = layer(x, x, x, need_weights=False)[0]
    return within([made], [wanted])


@check_of_gpu
def mixed_devices(device):
    q, k = draw(device, 1, 8, 2, 64, grad=False), draw("cpu", 1, 8, 2, 64, grad=False)
    out, before = torch.full_like(q, 7), torch.full_like(q, 7)
    said = []
    for call in (
        lambda: sirdar.torch.attention(q, k, k),
        lambda: sirdar.attention(q, k, q, out=out),
        lambda: sirdar.attention(q, q, q, out=k),
        lambda: sirdar.torch.scaled_dot_product_attention(q, q, k),
    ):
        try:
            call()
        except ValueError as error:
            said.append(str(error))
    assert len(said) == 4 and torch.equal(out, before)
    return said[0]


@check_of_gpu
def another_device(device):
    if torch.cuda.device_count() < 2:
        return "one GPU only"
    q, k, v = (draw("cuda:1", 2, 4, 513, 64) for _ in range(3))
    results = ours(q, k, v, is_causal=True)
    assert torch.cuda.current_device() == 0 and all(one.get_device() == 1 for one in results)
    return within(results, exact(q, k, v, is_causal=True))


@check_of_gpu
def another_device_in_turns(device):
    """The same problem and plans' shortest ways on both, on a stream of the second too while the first is current."""
    if torch.cuda.device_count() < 2:
        return "one GPU only"
    first = [draw("cuda:0", 1, 700, 4, 128) for _ in range(3)]
    second = [one.detach().to("cuda:1").requires_grad_() for one in first]
    stream, results = torch.cuda.Stream("cuda:1"), []
    stream.wait_stream(torch.cuda.current_stream(1))
    plans = [sirdar.plan(*(one.detach() for one in given)) for given in (first, second)]
    for turn in range(4):
        if turn == 2:
            torch.cuda.set_stream(stream)  # which makes the second device current
            torch.cuda.set_device(0)
        for given, plan in zip((first, second), plans):
            out = sirdar.torch.attention(*given, causal=True)
            grads = torch.autograd.grad(out.sin().sum(), given)
            with torch.no_grad():
                results.append([out, *grads, plan(*given)])
            assert all(one.device == given[0].device for one in results[-1])
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    for one in results[1:]:
        assert all(torch.equal(a.to("cuda:0"), b) for a, b in zip(one, results[0]))
    for plan, given in zip(plans, (second, first)):
        try:
            with torch.no_grad():
                plan(*given)
        except ValueError as error:
            said = str(error)
        else:
            raise AssertionError("tensors of another device than the plan's were not refused")
    return said


@check_of_gpu
def cupy(device):
    import cupy as cp

    with cp.cuda.Stream(non_blocking=True):
        q, k, v = (
            cp.random.standard_normal((2, 300, 4, 64), cp.float32).astype("float16") for _ in "qkv"
        )
        out = sirdar.attention(q, k, v, causal=True)
        assert isinstance(out, cp.ndarray) and out.dtype == cp.float16
        cp.cuda.get_current_stream().synchronize()
    made, *given = (torch.as_tensor(x, device=device).transpose(1, 2) for x in (out, q, k, v))
    return within([made], exact(*given, is_causal=True)[:1], 2e-3)


@check_of_gpu
def graph_of_training(device):
    q, k, v = (draw(device, 2, 4, 512, 64) for _ in range(3))

    def train():
        return ours(q, k, v, is_causal=True)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        train()  # compiles
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        results = train()
    with torch.no_grad():
        for tensor in (q, k, v):
            tensor.copy_(torch.randn_like(tensor))
    captured.replay()
    torch.cuda.synchronize()
    return within(results, exact(q, k, v, is_causal=True))


@check
def flash_attn_padded(device):
    qkv = draw(device, 2, 300, 3, 4, 64)
    is_token = torch.arange(300, device=device) < torch.tensor([[120], [300]], device=device)
    tokens, indices, starts, longest, _ = unpad_input(qkv, is_token)
    out = pad_input(
        flash_attn_varlen_qkvpacked_func(tokens, starts, longest, causal=True), indices, 2, 300
    )
    (grad,) = torch.autograd.grad(out.sin().sum(), qkv)
    wanted = [
        exact(*(x.transpose(1, 2) for x in qkv[b : b + 1, :n].unbind(2)), is_causal=True)
        for b, n in enumerate((120, 300))
    ]
    pairs = [
        (out[b, :n], one[0][0].transpose(0, 1))
        for b, (n, one) in enumerate(zip((120, 300), wanted))
    ]
    pairs += [
        (grad[b, :n, i], one[1 + i][0].transpose(0, 1))
        for b, (n, one) in enumerate(zip((120, 300), wanted))
        for i in range(3)
    ]
    return within(*zip(*pairs))


@check
def flash_attn_decoding(device):
    q, k, v = (
        draw(device, 2, 1, 8, 64, grad=False),
        draw(device, 40, 16, 2, 64, grad=False),
        draw(device, 40, 16, 2, 64, grad=False),
    )
    table = torch.randperm(40, device=device)[:32].view(2, 16).int()
    lengths = torch.tensor([200, 17], dtype=torch.int32, device=device)
    out = flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, block_table=table)
    for b, length in enumerate((200, 17)):
        keys, values = (x[table[b].long()].flatten(0, 1)[None, :length] for x in (k, v))
        wanted = exact(*(x.transpose(1, 2) for x in (q[b : b + 1], keys, values)), enable_gqa=True)[
            0
        ]
        result = within([out[b : b + 1]], [wanted.transpose(1, 2)])
    return result


@check
def flash_attn_dropout(device):
    q, k = draw(device, 1, 256, 2, 64, grad=False), draw(device, 1, 256, 2, 64, grad=False)
    v = torch.eye(256, device=device, dtype=torch.bfloat16)[None, :, None].expand(1, 256, 2, 256)
    weights = flash_attn_func(q, k, v, dropout_p=0.25)
    share = (weights == 0).double().mean().item()
    assert abs(share - 0.25) < 0.01, share
    return f"{share:.3f} dropped"


if __name__ == "__main__":
    sys.exit(main(__doc__.split("\n")[0]))
