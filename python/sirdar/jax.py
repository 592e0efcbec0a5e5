"""Attention for JAX on the CPU: inside jax.jit, and with gradients.

    from sirdar.jax import attention
    loss = jax.jit(jax.grad(lambda q, k, v: attention(q, k, v, causal=True).sum()))

The computation is called back by XLA on the host's memory (jax.pure_callback). Where JAX's default backend
is a GPU it is refused: a copy to the host and back would not be what was asked for.
"""

import contextlib
import functools
from typing import Any, Tuple, Union

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from . import _functions, _problem

__all__ = ["attention"]

# Arguments of sirdar.attention that are arrays; those with a gradient of their own first.
_WITH_GRADIENT = ("q", "k", "v", "bias", "sink")
_ARRAYS = (
    *_WITH_GRADIENT, "alibi", "mask", "document_q", "document_k", "cu_seqlens_q", "cu_seqlens_k",
    "seqused_q", "seqused_k", "page_table",
)  # fmt: skip
_NOT_HERE = ("out", "lse", "max_logit", "return_max_logit")


def attention(
    q: Any, k: Any, v: Any, *, return_lse: bool = False, **options: Any
) -> Union[jax.Array, Tuple[jax.Array, jax.Array]]:
    """sirdar.attention for JAX arrays, traced or not; arguments, shapes and errors are the same.

    Gradients flow to q, k, v, bias, sink and the fp32 arrays of tensors, from out and from lse; where
    another array would need one, NotImplementedError says so. seqlen_q and seqlen_k must be given with
    cu_seqlens. out, lse and max_logit cannot be passed: JAX's arrays are never written to. dropout_seed
    and dropout_offset are Python numbers, so a jitted function keeps its first ones.
    """
    if jax.default_backend() != "cpu":
        raise NotImplementedError(
            f"jax: the default backend is {jax.default_backend()}; only the CPU is supported, set "
            "JAX_PLATFORMS=cpu or use torch."
        )
    _refuse_traced(options | {"return_lse": return_lse})
    return_lse = _problem.flag("return_lse", return_lse)
    for name in _NOT_HERE:
        if name in options:
            raise TypeError(
                f"{name}: JAX arrays cannot be written to; only return_lse gives more than out."
            )
    score_mod, mask_mod, tensors, scalars = _functions._traced(
        options.pop("score_mod", None),
        options.pop("mask_mod", None),
        options.pop("tensors", None),
        options.pop("scalars", None),
    )
    arrays = {"q": q, "k": k, "v": v}
    for name in _ARRAYS[3:]:
        if options.get(name) is not None:
            arrays[name] = options[name]
        options.pop(name, None)
    for side in "qk":
        if f"cu_seqlens_{side}" in arrays and options.get(f"seqlen_{side}") is None:
            raise ValueError(
                f"seqlen_{side}: it is missing; a trace cannot look into cu_seqlens, so pass it."
            )
    arrays = {name: _array(name, array) for name, array in arrays.items()}
    _check_fit(arrays)
    _refuse_dropout_place(options)
    named = _problem.mapping("tensors", tensors, "{name: array}").items()
    named = {name: _array(f"tensors[{_problem.said(name)}]", array) for name, array in named}
    told = dict(options, score_mod=score_mod, mask_mod=mask_mod)
    told["scalars"] = tuple((scalars or {}).items())
    # Checks everything that needs no values, before XLA would.
    shapes = _shapes_of(arrays, named, told)
    with _reverse_mode_only():
        out, lse = _attention(tuple(sorted(told.items())), shapes, arrays, named)
    return (out, lse) if return_lse else out


def _array(name, value):
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {_problem.said(value)} is not an array; pass one of JAX or NumPy.") from None


def _refuse_traced(options):
    """Options are parts of the plan, which is made while JAX traces: they must be known then."""
    scalars = _problem.mapping("scalars", options.get("scalars"), "{name: number}")
    named = {f"scalars[{_problem.said(name)}]": value for name, value in scalars.items()}
    for name, value in (options | named).items():
        if name in _ARRAYS or not isinstance(value, jax.core.Tracer):
            continue
        instead = "pass a Python number, in jax.jit by static_argnames"
        if name == "softmax_scale":
            instead += ", or multiply q by it"
        elif name in named:
            instead += f', or an array by tensors and read it as {name[9:-2]}[0]'
        raise TypeError(f"{name}: is traced, and options are numbers that a plan is made of; {instead}.")


def _refuse_dropout_place(options):
    """XLA would wrap what the library says when it is called."""
    for name in ("dropout_seed", "dropout_offset"):
        if _problem.count(name, options.get(name, 0)) and not options.get("dropout_p", 0):
            raise ValueError(
                f"{name}: it is given although the problem has no dropout; leave it 0, or set dropout_p."
            )


@contextlib.contextmanager
def _reverse_mode_only():
    """JAX's words for what there is no derivative of, in ours."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if "custom_vjp" not in str(error) and "do not support JVP" not in str(error):
            raise
        raise NotImplementedError(
            "q, k, v: there are first derivatives in reverse mode only; use jax.grad or jax.vjp once, not "
            "jvp, jacfwd, hessian or a gradient of a gradient."
        ) from error


def _check_fit(arrays):
    """k and v against q where both are dense, for XLA would wrap what the library says of them."""
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    if (
        q.ndim != 4
        or k.ndim != 4
        or v.ndim != 4
        or "page_table" in arrays
        or "cu_seqlens_k" in arrays
    ):
        return
    batch, head_dim = q.shape[0], q.shape[3]
    for name, array, shape in (
        ("k", k, (batch, k.shape[1], k.shape[2], head_dim)),
        ("v", v, (batch, k.shape[1], k.shape[2], v.shape[3])),
    ):
        if array.shape != shape:
            raise ValueError(
                f"{name}: shape {list(array.shape)} does not fit; it must be {list(shape)}."
            )
        if array.dtype != q.dtype:
            raise ValueError(
                f"{name}: dtype {array.dtype} does not fit; it must be {q.dtype}, as q."
            )


def _shapes_of(arrays, named, told):
    """(shape, dtype) of out and lse, from a plan of the call on arrays of these shapes."""
    empty = {name: np.empty(array.shape, array.dtype) for name, array in arrays.items()}
    told = {
        name: value
        for name, value in told.items()
        if not name.startswith("dropout_") or name == "dropout_p"
    }
    tensors = {name: np.empty(array.shape, array.dtype) for name, array in named.items()}
    q, k, v = (empty.pop(name) for name in "qkv")
    plan = _functions.plan(
        q,
        k,
        v,
        **empty,
        **dict(told, scalars=dict(told["scalars"])),
        tensors=tensors or None,
        return_lse=True,
    )
    out = (*q.shape[:-1], v.shape[-1])
    lse = (q.shape[0], q.shape[2], q.shape[1]) if q.ndim == 4 else (q.shape[1], q.shape[0])
    dtype = {0: "float32", 1: "bfloat16", 2: "float16"}[plan._dtype_out]
    return (out, dtype), (lse, "float32")


def _options_of(told, tensors):
    options = dict(told)
    options["scalars"] = dict(options["scalars"]) or None
    options["tensors"] = tensors or None
    return options


def _host(arrays):
    return {name: np.asarray(array) for name, array in arrays.items()}


def _forward_on_host(told, arrays, named):
    return _functions.attention(**_host(arrays), **_options_of(told, _host(named)), return_lse=True)


def _backward_on_host(told, wanted, arrays, named, out, lse, dout, dlse):
    options = _options_of(told, _host(named))
    options.pop("dtype_out", None)
    gradients = _functions.backward(
        np.asarray(dout), **_host(arrays), out=np.asarray(out), lse=np.asarray(lse),
        dlse=None if dlse is None else np.asarray(dlse),
        needs_dbias="bias" in wanted[0], needs_dsink="sink" in wanted[0], needs_dtensors=wanted[1],
        **options,
    )  # fmt: skip
    of_arrays = {name: getattr(gradients, f"d{name}") for name in wanted[0]}
    return of_arrays, {name: gradients.dtensors[name] for name in wanted[1]}


def _callback(function, shapes, *arguments):
    return jax.pure_callback(function, shapes, *arguments, vmap_method="sequential")


def _struct(array):
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(told, shapes, arrays, named):
    structs = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes)
    return _callback(functools.partial(_forward_on_host, told), structs, arrays, named)


def _forward(told, shapes, arrays, named):
    """arrays and named hold CustomVJPPrimal: a value, and whether its gradient is asked for."""
    wanted = tuple(name for name in arrays if arrays[name].perturbed)
    for name in wanted:
        if name not in _WITH_GRADIENT:
            raise NotImplementedError(
                f"{name}: there is no gradient of it; take it out of what is differentiated, as by "
                "jax.lax.stop_gradient."
            )
    wanted_tensors = tuple(name for name in named if named[name].perturbed)
    arrays = {name: one.value for name, one in arrays.items()}
    named = {name: one.value for name, one in named.items()}
    out, lse = _attention(told, shapes, arrays, named)
    kept = (arrays, named, out, lse)
    # Names travel as keys: what is kept may hold arrays only.
    return (out, lse), (kept, dict.fromkeys(wanted), dict.fromkeys(wanted_tensors))


def _backward(told, shapes, kept, cotangents):
    (arrays, named, out, lse), wanted, wanted_tensors = kept
    dout, dlse = cotangents
    if isinstance(dout, SymbolicZero):
        dout = jnp.zeros(out.shape, out.dtype)
    dlse = None if isinstance(dlse, SymbolicZero) else dlse
    wanted = (tuple(wanted), tuple(wanted_tensors))
    fp32 = {"bias", "sink"}
    structs = (
        {
            name: jax.ShapeDtypeStruct(arrays[name].shape, "float32")
            if name in fp32
            else _struct(arrays[name])
            for name in wanted[0]
        },
        {name: _struct(named[name]) for name in wanted[1]},
    )
    function = functools.partial(_backward_on_host, told, wanted)
    with _reverse_mode_only():
        got, got_named = _callback(function, structs, arrays, named, out, lse, dout, dlse)
    got = {name: gradient.astype(arrays[name].dtype) for name, gradient in got.items()}
    return (
        {name: got.get(name) for name in arrays},
        {name: got_named.get(name) for name in named},
    )


_attention.defvjp(_forward, _backward, symbolic_zeros=True)
