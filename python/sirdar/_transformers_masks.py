"""The masks that transformers describes by functions, as options of sirdar.torch.attention: nothing of the size
[seqlen_q, seqlen_k] is made. What is not recognised is left to transformers, which makes a boolean tensor."""

import functools
import sys

import torch
from transformers import masking_utils


def _captured(function):
    """Names and values of what a function closes over."""
    cells = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells)}


def _kind(function):
    """The function of masking_utils that this is, or that made it; None for others."""
    if getattr(function, "__module__", None) != masking_utils.__name__:
        return None
    return function.__qualname__.partition(".")[0]


def _terms(function):
    """[(kind, what it captured)] of functions that all must hold; None where one is not recognised."""
    kind = _kind(function)
    if kind not in _KNOWN:
        return None
    captured = _captured(function)
    if kind == "and_masks":
        lists = [_terms(one) for one in captured["mask_functions"]]
        return None if None in lists else [term for one in lists for term in one]
    if kind == "remap_positions_for_packed_sequence":
        # Within a sequence positions differ as places do, and other pairs the packing hides.
        inner = _terms(captured["mask_function"])
        is_relative = inner is not None and all(name in _RELATIVE for name, _ in inner)
        return [*inner, (kind, captured)] if is_relative else None
    return [(kind, captured)]


_RELATIVE = {
    "causal_mask_function",
    "bidirectional_mask_function",
    "sliding_window_overlay",
    "sliding_window_bidirectional_overlay",
}
_KNOWN = _RELATIVE | {
    "and_masks",
    "chunked_overlay",
    "packed_sequence_mask_function",
    "remap_positions_for_packed_sequence",
}


def _of_padding(options, padding, q_length, shift):
    """Adds what hides the keys of padding [batch, kv_length], bool, true where there is a token."""
    lengths = padding.sum(-1, dtype=torch.int32)
    places = torch.arange(padding.shape[1], device=padding.device)
    is_prefix = (padding == (places < lengths[:, None])).all()
    is_full = padding.all()
    is_prefix, is_full = torch.stack((is_prefix, is_full)).tolist()
    if is_full:
        return
    has_place = any(
        name in options for name in ("causal", "window_left", "window_right", "chunk_size")
    )
    # A shorter sequence would move what is aligned to the bottom right.
    if is_prefix and (shift == 0 or not has_place):
        options["seqused_k"] = lengths
        return
    ids = options.get("document_k")
    if ids is None:
        options["document_q"] = torch.zeros((1, q_length), dtype=torch.int32, device=padding.device)
    hidden = padding.to(torch.int32) - 1  # -1, which no query has
    options["document_k"] = hidden if ids is None else torch.where(padding, ids, hidden)


def _options(terms, q_length, kv_length, shift, kv_offset, padding):
    """Options of attention(), and how many keys it is to see; None where they cannot say it. shift: a query's
    position less its row, less what the first key's position is."""
    options, tensors = {}, {}
    names = {name for name, _ in terms}
    if (
        "remap_positions_for_packed_sequence" in names
        and "packed_sequence_mask_function" not in names
    ):
        return None
    for name, captured in terms:
        if name == "causal_mask_function":
            options["causal"] = True
        elif name == "sliding_window_overlay":
            options["window_left"] = captured["sliding_window"] - 1
        elif name == "sliding_window_bidirectional_overlay":
            options["window_left"] = options["window_right"] = captured["sliding_window"]
        elif name == "packed_sequence_mask_function":
            ids = captured["packed_sequence_mask"].to(torch.int32)
            options["document_q"] = options["document_k"] = ids
        elif name == "chunked_overlay":
            size, first = captured["chunk_size"], captured["left_padding"]
            if kv_offset % size == 0 and not bool(first.any()):
                options["chunk_size"] = size
            else:  # chunks that begin where the tokens of a sequence do
                options["mask_mod"] = (
                    f"k >= first[b] && (q + {shift} - first[b]) / {size} == (k - first[b]) / {size}"
                )
                tensors["first"] = (first - kv_offset).to(torch.int32)
    if min(options.get("window_left", 0), options.get("window_right", 0)) < 0:
        return None
    if tensors:
        options["tensors"] = tensors
    length = kv_length
    if any(name in options for name in ("causal", "window_left", "window_right", "chunk_size")):
        if shift == 0:
            options["alignment"] = "top_left"
        elif shift != kv_length - q_length:
            # Only the keys up to the last query; then it is the last that sees the last.
            length = shift + q_length
            if "causal" not in options or not 0 < length < kv_length:
                return None
    if padding is not None:
        _of_padding(options, padding[:, :length], q_length, shift)
    return options, length


class Mask(torch.Tensor):
    """The boolean mask [batch, 1, seqlen_q, seqlen_k] that transformers would make, with no memory of its own.

    attention_options: what attention() is told instead; length: of the keys. Whoever else computes with it gets
    the real mask.
    """

    @staticmethod
    def of(shape, device, options, length, make):
        base = torch.ones((), dtype=torch.bool, device=device).expand(shape)
        mask = torch.Tensor._make_subclass(Mask, base)
        mask.attention_options, mask.length, mask.make, mask.made = options, length, make, None
        return mask

    def real(self):
        if self.made is None:
            self.made = self.make()
        return self.made

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        if function in _FACTS:
            return super().__torch_function__(function, kinds, args, kwargs)

        def real(value):
            return value.real() if type(value) is Mask else value

        args, kwargs = torch.utils._pytree.tree_map(real, (args, kwargs or {}))
        return function(*args, **kwargs)


_FACTS = {
    torch.Tensor.dim, torch.Tensor.size, torch.Tensor.stride, torch.Tensor.numel, torch.Tensor.__len__,
    *(getattr(torch.Tensor, name).__get__ for name in (
        "shape", "ndim", "dtype", "device", "layout", "is_cuda", "requires_grad", "grad_fn", "is_nested",
        "is_meta", "is_sparse",
    )),
}  # fmt: skip


@functools.lru_cache(maxsize=None)
def _asks_interface(module):
    """Whether a file of transformers gets its attention from the interface, or leaves it to models that do."""
    names = vars(sys.modules[module])
    if "ALL_ATTENTION_FUNCTIONS" in names:
        return True
    return any(getattr(one, "_supports_attention_backend", False) is True for one in names.values())


def _model_file(config):
    """The file of transformers that asks for a mask; where it is generate() that does, that of the model."""
    frame = sys._getframe(3)
    for _ in range(8):
        module = frame.f_globals.get("__name__", "")
        if module.startswith("transformers.models."):
            return module
        frame = frame.f_back
        if frame is None:
            break
    module = type(config).__module__.replace(".configuration_", ".modeling_")
    return module if module.startswith("transformers.models.") and module in sys.modules else None


def _refuse_own_attention(config):
    """A model that takes masks by attn_implementation, and then adds them to scores of its own, would compute
    something else than attention: the masks made here are boolean, or none."""
    module = _model_file(config)
    if module is not None and not _asks_interface(module):
        raise NotImplementedError(
            f"attn_implementation: {module} computes attention by itself and does not ask for another; "
            'load this model with attn_implementation="eager".'
        )


def make_mask(
    batch_size, q_length, kv_length, q_offset=0, kv_offset=0,
    mask_function=masking_utils.causal_mask_function, attention_mask=None, allow_is_causal_skip=True,
    allow_is_bidirectional_skip=False, use_vmap=False, device="cpu", **more,
):  # fmt: skip
    """transformers' mask interface: None where nothing is hidden but by a causal mask that the model knows of,
    a Mask where attention() has it, else a boolean tensor."""
    if not torch.compiler.is_compiling():
        _refuse_own_attention(more.get("config"))
    given = {
        "batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset,
        "kv_offset": kv_offset, "mask_function": mask_function, "attention_mask": attention_mask,
        "use_vmap": use_vmap, "device": device, **more,
    }  # fmt: skip
    skips = {
        "allow_is_causal_skip": allow_is_causal_skip,
        "allow_is_bidirectional_skip": allow_is_bidirectional_skip,
    }
    # One query's mask is as small as its keys; and a graph cannot carry what is not in tensors.
    is_small = q_length == 1 or kv_length == 0
    if is_small or use_vmap or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return masking_utils.sdpa_mask(**given, **skips)
    terms = _terms(mask_function)
    shift = int(q_offset) - int(kv_offset)
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset : kv_offset + kv_length].to(torch.bool)
    found = None if terms is None else _options(
        terms, q_length, kv_length, shift, int(kv_offset), padding
    )  # fmt: skip
    if found is None:
        return masking_utils.sdpa_mask(**given, **skips)
    options, length = found
    if options == {"causal": True, "alignment": "top_left"} and allow_is_causal_skip:
        return None
    if not options and allow_is_bidirectional_skip:
        return None
    never = dict.fromkeys(skips, False)
    return Mask.of(
        (batch_size, 1, q_length, kv_length), device, options, length,
        lambda: masking_utils.sdpa_mask(**given, **never),
    )  # fmt: skip
