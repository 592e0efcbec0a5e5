"""flash_attn.layers.rotary and flash_attn.ops.triton.rotary: what is refused, and that both turn alike."""

import numpy as np
import pytest
import torch

import sirdar.compat
from sirdar.compat.flash_attn.layers import rotary
from sirdar.compat.flash_attn.ops.triton.rotary import apply_rotary

ANGLE = torch.linspace(0, 3, 12 * 8).view(12, 8)
COS, SIN = ANGLE.cos(), ANGLE.sin()
X, QKV = torch.randn(2, 5, 4, 16), torch.randn(2, 5, 3, 4, 16)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("conjugate", [False, True])
def test_the_lower_layer_is_the_upper_one(interleaved, conjugate):
    options = {"interleaved": interleaved, "conjugate": conjugate}
    for x, more in ((X, {}), (X, {"seqlen_offsets": 7}), (X, {"seqlen_offsets": torch.tensor([2, 0])}),
                    (X[0], {"cu_seqlens": torch.tensor([0, 2, 5]).int(), "max_seqlen": 3})):  # fmt: skip
        wanted = rotary.apply_rotary_emb(x, COS, SIN, **options, **more)
        assert torch.equal(apply_rotary(x, COS, SIN, **options, **more), wanted)
        copy = x.clone().requires_grad_()
        assert apply_rotary(copy, COS, SIN, inplace=True, **options, **more) is copy and torch.equal(copy, wanted)
    # By the definition, where a pair of columns is a number of the plane.
    pairs = X.view(2, 5, 4, 8, 2) if interleaved else torch.stack(X.chunk(2, -1), -1)
    turned = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones(5, 8), ANGLE[:5] * (-1) ** conjugate)[:, None]
    found = apply_rotary(X, COS, SIN, **options)
    found = found.view(2, 5, 4, 8, 2) if interleaved else torch.stack(found.chunk(2, -1), -1)
    torch.testing.assert_close(torch.view_as_complex(found.contiguous()), turned)


def test_it_is_found_by_name():
    sirdar.compat.install()
    try:
        from flash_attn.ops.triton.rotary import apply_rotary as found

        assert found is apply_rotary
    finally:
        sirdar.compat.uninstall()


CALLS = {
    "apply_rotary_emb": (rotary.apply_rotary_emb, {"x": X, "cos": COS, "sin": SIN}),
    "apply_rotary": (apply_rotary, {"x": X, "cos": COS, "sin": SIN}),
    "apply_rotary_emb_qkv_": (rotary.apply_rotary_emb_qkv_, {"qkv": QKV, "cos": COS, "sin": SIN}),
    "apply_rotary_emb_kv_": (rotary.apply_rotary_emb_kv_, {"kv": QKV[:, :, :2].clone(), "cos": COS, "sin": SIN}),
}


@pytest.mark.parametrize("call, given", CALLS.values(), ids=CALLS)
def test_what_cannot_be_turned_is_refused_and_not_written_to(call, given):
    call(**given)
    name = next(iter(given))
    before = given[name].clone()
    wrong = [(one, value) for one in given for value in (None, "x", np.ones((12, 8)), torch.ones(()), torch.ones(12, 9, 2))]
    wrong += [("cos", COS[:11]), ("cos", torch.ones(12, 9)), ("sin", SIN[:, :7]), ("sin", torch.empty(12, 8, device="meta"))]
    for value in (-1, 1.0, True, "1", 2**70, torch.tensor([1.0, 2.0]), torch.tensor([1, 2, 3])):
        wrong.append(("seqlen_offsets", value))
    wrong += [("interleaved", value) for value in (2, "no", None)]
    for one, value in wrong:
        with pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
            call(**{**given, one: value})
        message = str(caught.value)
        assert message.startswith((f"{one}: ", "sin: " if one == "cos" else one)) and message.endswith("."), message
    for value in (8, torch.tensor([8, 0]), torch.tensor([0, -1])):  # rows of a table that has 12
        with pytest.raises(ValueError, match="^cos: has 12 positions, and the rows have those from"):
            call(**{**given, "seqlen_offsets": value})
    assert torch.equal(given[name], before)


@pytest.mark.parametrize("heads", [-1, 0.5, True, 7, 11, 12, 13, 100])
def test_heads_that_do_not_fit(heads):
    with pytest.raises((TypeError, ValueError), match="^num_heads_q: "):
        rotary.apply_rotary_emb_qkv_(torch.randn(2, 5, 12, 16), COS, SIN, num_heads_q=heads)


def without_memory(like):
    tensor = like.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("call, given", CALLS.values(), ids=CALLS)
def test_what_is_turned_has_fractions_memory_and_its_own_axes(call, given):
    before = {name: tensor.clone() for name, tensor in given.items()}
    for name, tensor in given.items():
        wrong = [tensor.to(dtype) for dtype in (torch.int32, torch.bool, torch.complex64)]
        for value in (*wrong, without_memory(tensor), tensor[None, None], tensor[0]):
            with pytest.raises(ValueError, match=rf"^({name}|sin|num_heads_q): .*\.$"):
                call(**{**given, name: value})
    assert all(torch.equal(tensor, before[name]) for name, tensor in given.items())


STARTS = (
    [0, 3, 6], [0, 3, 9], [1, 3, 8], [3, 8, 0], [0, 9, 8], [0, -1, 8], [], [8], 0, [[0, 8]], [0.0, 3.5, 8.0], [False, True],
)  # fmt: skip


@pytest.mark.parametrize("starts", STARTS, ids=str)
@pytest.mark.parametrize("inplace", [False, True])
def test_sequences_that_do_not_fit(starts, inplace):
    x = torch.randn(8, 2, 16)
    before, starts = x.clone(), torch.tensor(starts)
    starts = starts.int() if starts.dtype == torch.int64 or not starts.numel() else starts
    for function in (rotary.apply_rotary_emb, apply_rotary):
        with pytest.raises(ValueError, match=r"^cu_seqlens: is .*\.$"):
            function(x, COS, SIN, cu_seqlens=starts, max_seqlen=5, inplace=inplace)
        for wrong in ("x", [0, 3, 8], np.array([0, 3, 8])):
            with pytest.raises(TypeError, match="^cu_seqlens: a "):
                function(x, COS, SIN, cu_seqlens=wrong, inplace=inplace)
        for offsets in (torch.tensor([1]), torch.tensor([1, 2, 3]), torch.tensor([1.0, 2.0]), without_memory(torch.tensor([1, 2]))):
            with pytest.raises(ValueError, match="^seqlen_offsets: "):
                function(x, COS, SIN, seqlen_offsets=offsets, cu_seqlens=torch.tensor([0, 3, 8]).int(), inplace=inplace)
        for axes in (x[None], x[0]):
            with pytest.raises(ValueError, match="^x: has shape .*; 3 axes are needed"):
                function(axes, COS, SIN, cu_seqlens=torch.tensor([0, 3, 8]).int(), inplace=inplace)
    assert torch.equal(x, before)
    for dtype in (torch.int32, torch.int64):
        found = rotary.apply_rotary_emb(x, COS, SIN, cu_seqlens=torch.tensor([0, 3, 3, 8], dtype=dtype), seqlen_offsets=torch.tensor([1, 0, 4]))
        wanted = [rotary.apply_rotary_emb(x[None, :3], COS, SIN, seqlen_offsets=1), rotary.apply_rotary_emb(x[None, 3:], COS, SIN, seqlen_offsets=4)]
        assert torch.equal(found, torch.cat(wanted, 1)[0])
