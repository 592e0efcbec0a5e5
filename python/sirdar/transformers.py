"""Attention of Hugging Face transformers by this library:

    import sirdar.transformers
    sirdar.transformers.register()
    model = AutoModel.from_pretrained(name, attn_implementation="sirdar")

Causal and bidirectional models, sliding windows, padded and packed batches, groups of heads, sinks,
soft-caps, position biases, dynamic and static caches, training and inference, CPU and Hopper GPUs.
"""

import torch
import transformers

from ._transformers_masks import Mask, make_mask
from .torch import attention, scaled_dot_product_attention

NAME = "sirdar"


def _mask_options(attention_mask, position_bias, is_causal, seqlen_q):
    """What attention() is told: a mask of four axes, bool (true = visible) or added to the scores."""
    if attention_mask is None:
        # As transformers makes masks, none means: one query sees every key, several are aligned to the
        # first key (a static cache is longer than what has been written to it).
        options = {"causal": True, "alignment": "top_left"} if is_causal and seqlen_q > 1 else {}
        return options if position_bias is None else options | {"bias": position_bias}
    if type(attention_mask) is Mask:
        options = dict(attention_mask.attention_options)
        return options if position_bias is None else options | {"bias": position_bias}
    if attention_mask.dim() != 4:
        raise ValueError(
            f"attention_mask: has shape {tuple(attention_mask.shape)} when it arrives at the attention; "
            "[batch, 1, seqlen_q, seqlen_k] is needed, which transformers.masking_utils makes."
        )
    if attention_mask.stride(0) == 0:
        attention_mask = attention_mask[:1]  # one for the whole batch
    if attention_mask.dtype == torch.bool:
        return {"mask": attention_mask} | ({} if position_bias is None else {"bias": position_bias})
    return {"bias": attention_mask if position_bias is None else attention_mask + position_bias}


def _documents(lengths_q, lengths_k, seqlen_q, seqlen_k):
    """Which sequence a packed token belongs to, [1, seqlen] int32, from prefix sums of their lengths."""
    ids = {}
    for name, starts, seqlen in (("q", lengths_q, seqlen_q), ("k", lengths_k, seqlen_k)):
        places = torch.arange(seqlen, device=starts.device, dtype=starts.dtype)
        ids[f"document_{name}"] = torch.searchsorted(starts[1:], places, right=True).int()[None]
    return ids


def _simple(options):
    """options as scaled_dot_product_attention, which is faster where tensors are small, takes them; or None."""
    if not options:
        return {}
    if options == {"causal": True, "alignment": "top_left"}:
        return {"is_causal": True}
    return {"attn_mask": options["mask"]} if options.keys() == {"mask"} else None


def attention_forward(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    is_causal=None,
    softcap=None,
    s_aux=None,
    position_bias=None,
    cu_seq_lens_q=None,
    cu_seq_lens_k=None,
    **kwargs,
):
    """The function that models call: query [batch, num_heads_q, seqlen_q, head_dim], key and value
    [batch, num_heads_kv, seqlen_k, dim] to (out [batch, seqlen_q, num_heads_q, dim], None). s_aux: sinks.
    cu_seq_lens: of sequences packed into one. A sliding window is in the mask already."""
    if kwargs.get("output_attentions"):
        raise NotImplementedError(
            "output_attentions: the weights are never in memory here; load the model with "
            'attn_implementation="eager" to see them.'
        )
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if type(attention_mask) is Mask:
        if tuple(attention_mask.shape[2:]) != (query.shape[2], key.shape[2]):
            attention_mask = attention_mask.real()  # of another part of the sequences
        else:
            length = attention_mask.length
            key, value = key[:, :, :length], value[:, :, :length]
            if position_bias is not None:
                position_bias = position_bias[..., :length]
    options = _mask_options(attention_mask, position_bias, is_causal, query.shape[2])
    if cu_seq_lens_q is not None:
        keys = cu_seq_lens_q if cu_seq_lens_k is None else cu_seq_lens_k
        options |= _documents(cu_seq_lens_q, keys, query.shape[2], key.shape[2])
    simple = None if softcap or s_aux is not None else _simple(options)
    if simple is not None:
        out = scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, scale=scaling, enable_gqa=True, **simple
        )
        return out.transpose(1, 2), None
    out = attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), dropout_p=dropout,
        softmax_scale=scaling, softcap=softcap or 0.0, sink=None if s_aux is None else s_aux.float(),
        **options,
    )  # fmt: skip
    return out, None


def register(name: str = NAME) -> None:
    """Makes attn_implementation=name this library's, for models that are loaded from now on."""
    transformers.AttentionInterface.register(name, attention_forward)
    transformers.AttentionMaskInterface.register(name, make_mask)
