"""What a GPU alone can show: tensors of over 2^31 elements, many heads, other streams and devices, the same bits.

usage: PYTHONPATH=python python3 tests/device/limits_on_gpu.py

Prints a line a check and ends with the number that failed, which is the exit code. Wants 60 GiB of GPU memory.
What needs a second GPU is left out where there is one.
"""

import math
import sys
import traceback

import torch

import sirdar

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def draw(*shape, device="cuda", dtype=torch.bfloat16):
    return torch.randn(shape, device=device, dtype=dtype)


def exact(q, k, v, causal=False, window_left=None):
    """One head in float64: [rows, dim] each, and the sum of each row's weights' logarithm."""
    scores = q.double() @ k.double().T / math.sqrt(q.shape[1])
    row = torch.arange(len(q), device=q.device)[:, None] + len(k) - len(q)
    key = torch.arange(len(k), device=q.device)[None]
    if causal:
        scores.masked_fill_(key > row, -math.inf)
    if window_left is not None:
        scores.masked_fill_(key < row - window_left, -math.inf)
    return torch.softmax(scores, -1) @ v.double()


def within(actual, wanted, limit=0.02):
    worst = ((actual.double() - wanted).abs().max() / wanted.abs().max()).item()
    assert worst <= limit, f"largest relative error {worst:.1e}"
    return f"{worst:.1e}"


def some_heads(q, k, v, out, **masks):
    """The worst of the first, the last and a middle head of the first and last sequence."""
    worst = 0.0
    for b in {0, len(q) - 1}:
        for h in {0, q.shape[2] // 2, q.shape[2] - 1}:
            wanted = exact(q[b, :, h], k[b, :, h], v[b, :, h], **masks)
            worst = max(worst, float(within(out[b, :, h], wanted)))
    return f"{worst:.1e}"


@check
def tensors_of_over_2_31_elements():
    q, k, v = (draw(136, 2048, 64, 128) for _ in range(3))
    assert q.numel() > 2**31
    return some_heads(q, k, v, sirdar.attention(q, k, v, causal=True), causal=True)


@check
def a_sequence_of_over_2_31_elements():
    q, k, v = (draw(1, 1 << 17, 136, 128) for _ in range(3))
    out = sirdar.attention(q, k, v, causal=True, window_left=200)
    end = slice(q.shape[1] - 400, None)
    wanted = exact(q[0, end, 135], k[0, end, 135], v[0, end, 135], causal=True, window_left=200)
    return within(out[0, end, 135][200:], wanted[200:])


@check
def heads_and_sequences_over_65535():
    q, k, v = (draw(70000, 16, 1, 64) for _ in range(3))
    return some_heads(q, k, v, sirdar.attention(q, k, v))


@check
def gradients_of_over_2_31_elements():
    q, k, v, dout = (draw(136, 1024, 128, 128) for _ in range(4))
    out, lse = sirdar.attention(q, k, v, causal=True, return_lse=True)
    grads = sirdar.backward(dout, q, k, v, out, lse, causal=True)
    worst = 0.0
    for b, h in ((0, 0), (135, 127)):
        one = [tensor[b, :, h].double().requires_grad_() for tensor in (q, k, v)]
        exact(*one, causal=True).backward(dout[b, :, h].double())
        for grad, wide in zip(grads, one):
            worst = max(worst, float(within(grad[b, :, h], wide.grad)))
    return f"{worst:.1e}"


def repeats(make, times=20):
    """The same bits while another stream multiplies matrices."""
    first = [one.clone() for one in make()]
    matrix, other = draw(4096, 4096), torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    for _ in range(times):
        with torch.cuda.stream(other):
            matrix @ matrix
        for one, two in zip(first, make()):
            assert torch.equal(one, two), "other bits"
    torch.cuda.synchronize()
    return f"{times} times"


@check
def the_same_bits_forward():
    q, k, v = (draw(2, 1500, 8, 128) for _ in range(3))
    return repeats(lambda: [sirdar.attention(q, k, v, causal=True)])


@check
def the_same_bits_backward():
    said = []
    for dim, causal in ((64, False), (128, True), (128, False), (256, False)):
        q, k, v, dout = (draw(2, 1500, 4, dim) for _ in range(4))
        out, lse = sirdar.attention(q, k, v, causal=causal, return_lse=True)
        said.append(repeats(lambda: sirdar.backward(dout, q, k, v, out, lse, causal=causal)[:3]))
    return said[0]


@check
def biases_by_tma():
    """Enough blocks that a stage is written again as soon as it is given back."""
    said = []
    for dim in (64, 128):
        for dtype in (torch.bfloat16, torch.float32):
            q, k, v, dout = (draw(2, 1024, 16, dim) for _ in range(4))
            bias = draw(2, 16, 1024, 1024, dtype=dtype)
            out, lse = sirdar.attention(q, k, v, bias=bias, return_lse=True)
            for b, h in ((0, 0), (1, 15)):
                leaves = [x[b, :, h].double().requires_grad_() for x in (q, k, v)]
                scores = leaves[0] @ leaves[1].T / math.sqrt(dim) + bias[b, h].double()
                wanted = torch.softmax(scores, -1) @ leaves[2]
                said.append(within(out[b, :, h], wanted.detach()))
                wanted.backward(dout[b, :, h].double())
                found = sirdar.backward(dout, q, k, v, out, lse, bias=bias)[:3]
                said.extend(within(x[b, :, h], leaf.grad) for x, leaf in zip(found, leaves))
            repeats(lambda: [sirdar.attention(q, k, v, bias=bias)])
            repeats(lambda: sirdar.backward(dout, q, k, v, out, lse, bias=bias)[:3])
    return max(said, key=float)


@check
def odd_addresses_and_strides():
    wide = draw(2, 300, 4, 65)
    q, k, v = (wide[..., 1:], wide[..., :64], draw(2, 300, 4, 64))
    return some_heads(q, k, v, sirdar.attention(q, k, v))


@check
def many_streams_at_once():
    q, k, v = (draw(1, 1000, 4, 64) for _ in range(3))
    streams, outs = [torch.cuda.Stream() for _ in range(8)], []
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outs.append(sirdar.attention(q, k, v, causal=True))
    torch.cuda.synchronize()
    assert all(torch.equal(out, outs[0]) for out in outs)
    return some_heads(q, k, v, outs[0], causal=True)


@check
def refusals_leave_the_context_usable():
    q = draw(1, 64, 2, 64)
    for wrong in (
        {"k": q.cpu()},
        {"k": q[:, :, :, :32]},
        {"score_mod": "score + unknown"},
        {"out": torch.empty(1, 64, 2, 64, device="cuda", dtype=torch.int32)},
    ):
        try:
            sirdar.attention(**{"q": q, "k": q, "v": q, **wrong})
        except (ValueError, TypeError, NotImplementedError):
            continue
        raise AssertionError(f"not refused: {list(wrong)}")
    return some_heads(q, q, q, sirdar.attention(q, q, q))


@check
def a_device_that_is_not_current():
    if torch.cuda.device_count() < 2:
        return "left out: one GPU"
    q, k, v = (draw(1, 500, 4, 128, device="cuda:1") for _ in range(3))
    out, lse = sirdar.attention(q, k, v, causal=True, return_lse=True)
    grads = sirdar.backward(out, q, k, v, out, lse, causal=True)
    assert out.device == grads[0].device == q.device and torch.cuda.current_device() == 0
    try:
        sirdar.attention(q, k.to("cuda:0"), v)
    except ValueError:
        return some_heads(q, k, v, out, causal=True)
    raise AssertionError("tensors of two devices were not refused")


def run(checks):
    """Functions by name, each of which returns what to say; the number that failed."""
    failed = 0
    for name, function in checks.items():
        torch.manual_seed(0)
        try:
            print(f"ok       {name}: {function()}", flush=True)
        except Exception as trouble:
            failed += 1
            print(f"FAILED   {name}: {type(trouble).__name__}: {str(trouble)[:600]}", flush=True)
            traceback.print_exc(limit=-3)
        torch.cuda.empty_cache()
    print(f"{failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(run(CHECKS))
