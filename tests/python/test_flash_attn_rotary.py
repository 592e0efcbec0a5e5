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
