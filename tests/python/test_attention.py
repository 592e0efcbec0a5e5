"""What the functions return, against attention by its definition in float64."""

import formula
import numpy as np
import pytest
import sirdar


def definition(q, k, v, **options):
    """What formula.forward gives, for a dense batch."""
    sequences = [formula.forward(*rows, **options) for rows in zip(q, k, v, strict=True)]
    return {name: np.stack([one[name] for one in sequences]) for name in ("out", "lse", "max_logit")}


def close(actual, wanted, tolerance=3e-6):
    np.testing.assert_allclose(np.asarray(actual, np.float64), wanted, rtol=tolerance, atol=tolerance)


@pytest.fixture
def qkv(random):
    return random(2, 5, 4, 16), random(2, 7, 2, 16), random(2, 7, 2, 24)


def test_out_and_lse_are_those_of_the_definition(qkv):
    out, lse = sirdar.attention(*qkv, causal=True, return_lse=True)
    wanted = definition(*qkv, shown=formula.structured(5, 7, causal=True))
    assert out.dtype == lse.dtype == np.float32
    close(out, wanted["out"])
    close(lse, wanted["lse"])


def test_a_plan_of_a_text_and_one_of_arrays_compute_the_same(qkv):
    of_text = sirdar.plan("fwd b2 sq5 sk7 hq4 hkv2 d16 dv24 fp32 causal lse")
    of_arrays = sirdar.plan(*qkv, causal=True, return_lse=True)
    wanted = sirdar.attention(*qkv, causal=True, return_lse=True)
    for plan in (of_text, of_arrays):
        assert plan.name == "cpu.forward" and plan.device == "cpu"
        for actual, one in zip(plan(*qkv), wanted, strict=True):
            np.testing.assert_array_equal(actual, one)
