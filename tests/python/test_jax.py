"""sirdar.jax: in jax.jit, differentiated, and what it refuses."""

import numpy as np
import pytest
import sirdar

jax = pytest.importorskip("jax")
jnp = jax.numpy


@pytest.fixture
def qkv(random):
    return random(2, 6, 4, 16), random(2, 9, 2, 16), random(2, 9, 2, 16)


def plain(q, k, v, bias=0.0, sink=None):
    """Causal attention in JAX's own operations."""
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    s = jnp.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5 + bias
    i, j = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])[None]
    s = jnp.where(j <= i + k.shape[1] - q.shape[1], s, -jnp.inf)
    lse = jax.nn.logsumexp(s, -1)
    if sink is not None:
        lse = jnp.logaddexp(lse, sink[None, :, None])
    return jnp.einsum("bhij,bjhd->bihd", jnp.exp(s - lse[..., None]), v), lse


def test_jitted_it_gives_the_bits_of_the_function(qkv):
    from sirdar.jax import attention

    out, lse = jax.jit(lambda q, k, v: attention(q, k, v, causal=True, return_lse=True))(*qkv)
    wanted = sirdar.attention(*qkv, causal=True, return_lse=True)
    np.testing.assert_array_equal(out, wanted[0])
    np.testing.assert_array_equal(lse, wanted[1])
    np.testing.assert_array_equal(attention(*qkv, causal=True), wanted[0])


def test_gradients_are_those_of_jax(qkv, random):
    from sirdar.jax import attention

    bias, sink, weight = random(1, 4, 6, 9), random(4), random(2, 6, 4, 16)

    def loss(function):
        def of(q, k, v, bias, sink):
            out, lse = function(q, k, v, bias, sink)
            return (out * weight).sum() + (lse**2).sum()

        return jax.jit(jax.grad(of, argnums=(0, 1, 2, 3, 4)))

    def ours(q, k, v, bias, sink):
        return attention(q, k, v, bias=bias, sink=sink, causal=True, return_lse=True)

    got, wanted = loss(ours)(*qkv, bias, sink), loss(plain)(*qkv, bias, sink)
    for one, right in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, right, rtol=2e-4, atol=2e-5)


def test_the_gradient_of_what_a_lambda_reads(qkv, random):
    from sirdar.jax import attention

    slope = jnp.asarray(random(4))

    def ours(slope):
        return attention(
            *qkv, score_mod=lambda score, h, k, q_pos: score + slope[h] * (k - q_pos), causal=True
        ).sum()

    def theirs(slope):
        i, j = jnp.arange(6)[:, None] + 3, jnp.arange(9)[None]
        return plain(*qkv, bias=slope[None, :, None, None] * (j - i))[0].sum()

    np.testing.assert_allclose(
        jax.jit(jax.grad(ours))(slope), jax.jit(jax.grad(theirs))(slope), rtol=1e-3, atol=1e-4
    )


def test_half_precision_large_arrays_and_vmap(random):
    from sirdar.jax import attention

    q = jnp.asarray(random(1, 600, 8, 64), jnp.bfloat16)
    out = jax.jit(lambda q: attention(q, q, q, causal=True))(q)
    wanted, _ = jax.jit(plain)(*(q.astype(jnp.float32),) * 3)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(out.astype(jnp.float32), wanted, atol=3e-2)
    many = jnp.asarray(random(3, 2, 5, 4, 8))
    np.testing.assert_array_equal(
        jax.vmap(lambda q: attention(q, q, q))(many),
        np.stack([sirdar.attention(q, q, q) for q in np.asarray(many)]),
    )


def test_what_is_refused(qkv):
    from sirdar.jax import attention

    q, k, v = qkv
    with pytest.raises(ValueError, match="k: shape"):
        jax.jit(lambda q, k, v: attention(q, k, v))(q, k[:1], v)
    with pytest.raises(NotImplementedError, match="alibi: there is no gradient"):
        jax.grad(lambda slopes: attention(q, k, v, alibi=slopes).sum())(jnp.ones(4))
    with pytest.raises(TypeError, match="out: JAX arrays"):
        attention(q, k, v, out=q)
    with pytest.raises(ValueError, match="seqlen_q: it is missing"):
        attention(q[0], k, v, cu_seqlens_q=jnp.array([0, 6], jnp.int32))


@pytest.mark.parametrize("value", [None, "x", "x" * 1_000_000, object(), {}, [[1.0], [1.0, 2.0]]], ids="none text long object dict ragged".split())
def test_what_is_no_array(qkv, value):
    from sirdar.jax import attention

    names = ["q", "k", "v"] + ["bias", "mask", "sink", "alibi", "document_q"] * (value is not None)
    for name in names:
        given = {**dict(zip("qkv", qkv)), name: value}
        with pytest.raises(TypeError, match=f"^{name}: .* is not an array; pass one of JAX or NumPy.$") as caught:
            attention(**given)
        assert len(str(caught.value)) < 200
    with pytest.raises(TypeError, match=r"^tensors\['t'\]: .* is not an array"):
        attention(*qkv, score_mod="score + t[h]", tensors={"t": value})
    for name in ("tensors", "scalars"):
        if not isinstance(value, dict) and value is not None:
            with pytest.raises(TypeError, match=f"^{name}: .* is not a dict"):
                attention(*qkv, score_mod="score", **{name: value})


def test_forward_mode_and_second_derivatives_are_refused(qkv):
    from sirdar.jax import attention

    def loss(q):
        return attention(q, *qkv[1:]).sum()

    q = jnp.asarray(qkv[0])
    for call in (
        lambda: jax.jvp(loss, (q,), (q,)),
        lambda: jax.jacfwd(loss)(q),
        lambda: jax.hessian(loss)(q),
        lambda: jax.grad(lambda q: jax.grad(loss)(q).sum())(q),
    ):
        with pytest.raises(NotImplementedError, match="^q, k, v: there are first derivatives"):
            call()
