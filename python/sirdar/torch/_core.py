"""The only way down from torch: the operators' arguments as sirdar.attention and .backward take them."""

import contextlib
from collections import namedtuple
from collections.abc import Mapping

import torch
from torch.autograd import forward_ad

from .. import _functions, _problem

# The operators' optional tensors, in order; those from mask on have no gradient.
INPUTS = (
    "bias", "sink", "mask", "alibi", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k",
    "page_table", "document_q", "document_k",
)  # fmt: skip

NOTHING = contextlib.nullcontext()
NUM_PLAIN_OPTIONS = 10  # those of a call without expressions, which the library takes as they are
_Fields = namedtuple("_Fields", "score_mod mask_mod names tensors scalar_names scalars")


class Expression(_Fields):
    """Texts with the tensors and scalars that they read; names are joined by commas, because operators
    take no list of texts by default."""

    __slots__ = ()

    def options(self):
        return {
            name: value for name, value in self._asdict().items() if value and name != "tensors"
        }


NO_EXPRESSION = Expression("", "", "", (), "", ())


_INSTEAD = {
    "scale": "multiply query by it",
    "softmax_scale": "multiply q by it",
    "softcap": 'write score_mod="c[0] * tanh(score / c[0])" with tensors={"c": c.reshape(1)}',
}


def number(name, value, instead="leave it as it is"):
    """A number given as a tensor of one element. It has no gradient, so one that wants it is refused."""
    has_tangent = (
        forward_ad._current_level >= 0 and forward_ad.unpack_dual(value).tangent is not None
    )
    if has_tangent or (value.requires_grad and torch.is_grad_enabled()):
        raise ValueError(
            f"{name}: is a tensor that requires a gradient, and numbers get none; "
            f"{_INSTEAD.get(name, instead)}, or detach() it."
        )
    if value.numel() != 1 or value.is_meta:
        raise ValueError(
            f"{name}: is a tensor of shape {tuple(value.shape)} on {value.device}; a number, or a tensor of one, "
            "is needed."
        )
    return value.item()


def _held(name, value):
    return number(name, value) if isinstance(value, torch.Tensor) else value


def flag(name, value):
    """A bool; TypeError for what is no flag."""
    return value if type(value) is bool else bool(_problem.flag(name, _held(name, value)))


def whole(name, value):
    """An int, or torch's symbol of one, of what may be a tensor; TypeError for what is no whole number."""
    if isinstance(value, torch.SymInt) or type(value) is int and -(2**63) < value < 2**63:
        return value
    return _problem.integer(name, _held(name, value))


def count(name, value):
    """A whole number that is not negative."""
    number = whole(name, value)
    if not isinstance(number, torch.SymInt) and number < 0:
        raise ValueError(f"{name}: is {number}; 0 or more is needed.")
    return number


def real(name, value):
    """A float or an int, or torch's symbol of one, of what may be a tensor; TypeError for what is no number."""
    if type(value) in (float, int) or isinstance(value, (torch.SymFloat, torch.SymInt)):
        return value
    return _problem.real(name, _held(name, value))


_READ = {
    "seqlen_q": whole, "seqlen_k": whole, "window_left": whole, "window_right": whole, "chunk_size": whole,
    "softmax_scale": real, "softcap": real, "dropout_p": real, "causal": flag, "deterministic": flag,
}  # fmt: skip
_MAY_BE_NONE = ("seqlen_q", "seqlen_k", "window_left", "window_right", "softmax_scale")


def checked(options):
    """options, each of the kind that it must be. Operators take a bool for a number and a tensor for either; and an
    array that is written to later would be taken for the same number."""
    for name, read in _READ.items():
        value = options[name]
        if value is not None or name not in _MAY_BE_NONE:
            options[name] = read(name, value)
    return options


def _named(list_name, given):
    """{name: value} that expressions read, checked; operators take the names joined by commas."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        what = "tensor" if list_name == "tensors" else "number"
        raise TypeError(
            f"{list_name}: is a {type(given).__name__}; a dict of names is needed, {{name: {what}}}."
        )
    for name in given:
        if not isinstance(name, str):
            raise TypeError(
                f"{list_name}: has the key {_problem.said(name)}; the names in expressions are needed."
            )
        if "," in name:
            raise ValueError(
                f"{list_name}: has the key {_problem.said(name)}; expressions read names of letters."
            )
    return dict(given)


def _scalar(name, value):
    said = f"scalars[{_problem.said(name)}]"
    if isinstance(value, torch.Tensor):
        instead = f'pass it as tensors={{"{name}": {name}.reshape(1)}} and write {name}[0]'
        value = number(said, value, instead)
    return _problem.real(said, value)


def expression(score_mod, mask_mod, tensors, scalars):
    """The Expression of texts, or of functions, which are traced."""
    if score_mod is mask_mod is tensors is scalars is None:
        return NO_EXPRESSION
    if torch.compiler.is_compiling() and (callable(score_mod) or callable(mask_mod)):
        raise NotImplementedError(
            "score_mod, mask_mod: a function cannot be traced inside a compiled one; write it as text, with "
            "what it reads in tensors."
        )
    tensors, scalars = _named("tensors", tensors), _named("scalars", scalars)
    score_mod, mask_mod, tensors, scalars = _functions._traced(
        score_mod, mask_mod, tensors, scalars
    )
    tensors, scalars = tensors or {}, scalars or {}
    return Expression(
        score_mod or "", mask_mod or "", ",".join(tensors), tuple(tensors.values()), ",".join(scalars),
        tuple(_scalar(name, value) for name, value in scalars.items()),
    )  # fmt: skip


def output_dtype(dtype):
    """q's dtype; bf16 where that has 8 bits."""
    return torch.bfloat16 if dtype.itemsize == 1 else dtype


def _options(options, tensors, rng):
    """The operators' options as the library's functions take them."""
    options = dict(options)
    names, scalar_names = options.pop("names", ""), options.pop("scalar_names", "")
    scalars = options.pop("scalars", ())
    if names:
        options["tensors"] = dict(zip(names.split(","), tensors))
    if scalar_names:
        options["scalars"] = dict(zip(scalar_names.split(","), scalars))
    for name in ("score_mod", "mask_mod"):
        if not options.get(name):
            options.pop(name, None)
    if rng is not None:
        seed, offset = rng.tolist()
        if seed < 0 or offset < 0:
            raise ValueError(
                f"dropout_rng: holds seed {seed} and offset {offset}; neither may be negative."
            )
        options["dropout_seed"], options["dropout_offset"] = seed, offset
    return options


def forward(
    q, k, v, bias, sink, tensors, mask, alibi, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k,
    page_table, document_q, document_k, rng, max_logit=False, lse=True, deterministic=True, **options,
):  # fmt: skip
    """(out, lse), with max_logit=True (out, lse, max_logit), with lse=False too out alone. The forward pass
    is always deterministic."""
    if rng is not None or tensors or len(options) > NUM_PLAIN_OPTIONS:
        options = _options(options, tensors, rng)
    return _functions.attention(
        q, k, v, bias=bias, sink=sink, mask=mask, alibi=alibi, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q, seqused_k=seqused_k, page_table=page_table,
        document_q=document_q, document_k=document_k, return_lse=lse, return_max_logit=max_logit,
        **options,
    )  # fmt: skip


def backward(
    dout, dlse, out, lse, q, k, v, bias, sink, tensors, *others,
    needs_dbias=False, needs_dsink=False, needs_dtensors=(), **options,
):  # fmt: skip
    """[dq, dk, dv], then dbias, dsink and dtensors where they are asked for."""
    *others, rng = others
    given = dict(zip(INPUTS, (bias, sink, *others)))
    if given.pop("page_table") is not None:
        raise NotImplementedError(
            "page_table: attention over pages has no backward pass; gather the pages into k and v."
        )
    names = options.get("names", "").split(",")
    wanted = tuple(names[i] for i in needs_dtensors)
    if rng is not None or tensors or len(options) > NUM_PLAIN_OPTIONS + 1:
        options = _options(options, tensors, rng)
    # out and lse may belong to a graph; nothing is recorded here.
    with torch.no_grad() if torch.is_grad_enabled() else NOTHING:
        grads = _functions.backward(
            dout, q, k, v, out, lse, dlse=dlse, needs_dbias=needs_dbias, needs_dsink=needs_dsink,
            needs_dtensors=wanted, **given, **options,
        )  # fmt: skip
    more = [grads.dbias] * needs_dbias + [grads.dsink] * needs_dsink
    return [grads.dq, grads.dk, grads.dv, *more, *(grads.dtensors[name] for name in wanted)]
