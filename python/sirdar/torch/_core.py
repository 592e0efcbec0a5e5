"""The only way down from torch: the operators' arguments as sirdar.attention and .backward take them."""

from collections import namedtuple

import torch

from .. import _functions

# The operators' optional tensors, in order; those from mask on have no gradient.
INPUTS = (
    "bias", "sink", "mask", "alibi", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k",
    "page_table", "document_q", "document_k",
)  # fmt: skip

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


def expression(score_mod, mask_mod, tensors, scalars):
    """The Expression of texts, or of functions, which are traced."""
    if score_mod is None and mask_mod is None and not tensors and not scalars:
        return NO_EXPRESSION
    score_mod, mask_mod, tensors, scalars = _functions._traced(
        score_mod, mask_mod, tensors, scalars
    )
    tensors, scalars = tensors or {}, scalars or {}
    return Expression(
        score_mod or "", mask_mod or "", ",".join(tensors), tuple(tensors.values()), ",".join(scalars),
        tuple(float(value) for value in scalars.values()),
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
        options["dropout_seed"], options["dropout_offset"] = seed % 2**64, offset % 2**64
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
    with torch.no_grad():  # out and lse may belong to a graph; nothing is recorded here
        grads = _functions.backward(
            dout, q, k, v, out, lse, dlse=dlse, needs_dbias=needs_dbias, needs_dsink=needs_dsink,
            needs_dtensors=wanted, **given, **_options(options, tensors, rng),
        )  # fmt: skip
    more = [grads.dbias] * needs_dbias + [grads.dsink] * needs_dsink
    return [grads.dq, grads.dk, grads.dv, *more, *(grads.dtensors[name] for name in wanted)]
