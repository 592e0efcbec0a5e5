"""Masks of transformers that are never made: windows, padding, packing and chunks as options of attention()."""

import copy
import types

import pytest
import torch
import transformers
from transformers import masking_utils

import sirdar.transformers
from sirdar import _transformers_masks

transformers.logging.set_verbosity_error()
SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 8}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Making a mask of several queries is an error."""
    sirdar.transformers.register()
    make = masking_utils.sdpa_mask

    def of_one_query(*args, q_length, **kwargs):
        assert q_length == 1, "a mask of several queries was made"
        return make(*args, q_length=q_length, **kwargs)

    ours = types.SimpleNamespace(**vars(masking_utils) | {"sdpa_mask": of_one_query})
    monkeypatch.setattr(
        _transformers_masks, "masking_utils", ours
    )  # eager makes its masks by it too


def pair(config, kind=transformers.AutoModelForCausalLM):
    torch.manual_seed(0)
    models = [
        kind.from_config(copy.deepcopy(config), attn_implementation=name).eval()
        for name in ("eager", "sirdar")
    ]
    models[1].load_state_dict(models[0].state_dict())
    return models


def tokens(*shape):
    return torch.randint(1, 60, shape, generator=torch.Generator().manual_seed(1))


PADDING = {
    "none": None,
    "full": [[1] * 12] * 3,
    "right": [[1] * 12, [1] * 7 + [0] * 5, [1] * 9 + [0] * 3],
    "left": [[1] * 12, [0] * 5 + [1] * 7, [0] * 3 + [1] * 9],
    "holes": [[1] * 12, [1] * 4 + [0] * 2 + [1] * 6, [0] + [1] * 8 + [0] * 3],
}
CONFIGURATIONS = {
    "llama": transformers.LlamaConfig(**GROUPED),
    "mistral": transformers.MistralConfig(**GROUPED, sliding_window=4),
    "gemma": transformers.Gemma2Config(**GROUPED, sliding_window=5, query_pre_attn_scalar=8),
    "chunks": transformers.Llama4TextConfig(
        **GROUPED,
        attention_chunk_size=4,
        num_local_experts=2,
        intermediate_size_mlp=48,
        no_rope_layers=[1, 0],
    ),  # fmt: skip
}


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_decoders(name, padding):
    models, ids = pair(CONFIGURATIONS[name]), tokens(3, 12)
    shown = None if PADDING[padding] is None else torch.tensor(PADDING[padding])
    wanted, actual = (model(ids, attention_mask=shown, use_cache=False).logits for model in models)
    seen = slice(None) if shown is None else shown.bool()
    torch.testing.assert_close(actual[seen], wanted[seen], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("window", [None, 6])
def test_encoders(padding, window):
    if window is None:
        config = transformers.BertConfig(**SMALL)
    else:
        config = transformers.ModernBertConfig(
            **SMALL, local_attention=window, global_attn_every_n_layers=2, pad_token_id=0, cls_token_id=1,
            sep_token_id=2, bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
    models, ids = pair(config, transformers.AutoModel), tokens(3, 12)
    shown = None if PADDING[padding] is None else torch.tensor(PADDING[padding])
    wanted, actual = (model(ids, attention_mask=shown).last_hidden_state for model in models)
    seen = slice(None) if shown is None else shown.bool()
    torch.testing.assert_close(actual[seen], wanted[seen], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma"])
def test_packed_sequences(name):
    models, ids = pair(CONFIGURATIONS[name]), tokens(1, 14)
    places = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 1, 0, 1, 2, 3, 4]])
    wanted, actual = (m(ids, position_ids=places, use_cache=False).logits for m in models)
    torch.testing.assert_close(actual, wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_prefill_in_parts(name, padded, kind):
    """The second part's queries stand after keys of the cache, and a static cache is longer than both."""
    models, ids = pair(CONFIGURATIONS[name]), tokens(2, 15)
    shown = torch.ones(2, 15, dtype=torch.long)
    if padded:
        shown[0, :3] = 0
    results = []
    for model in models:
        if kind == "static":
            cache = transformers.StaticCache(config=model.config, max_cache_len=24)
        else:
            cache = transformers.DynamicCache(config=model.config)
        with torch.no_grad():
            parts = [
                model(ids[:, a:b], attention_mask=shown[:, :b], past_key_values=cache).logits
                for a, b in ((0, 6), (6, 11), (11, 15))
            ]
        results.append(torch.cat(parts, 1)[shown.bool()])
    torch.testing.assert_close(results[1], results[0], rtol=2e-4, atol=2e-5)


def options_of(mask_function, **more):
    mask = _transformers_masks.make_mask(2, 6, 6, mask_function=mask_function, **more)
    return mask if mask is None else mask.attention_options


def test_what_attention_is_told():
    causal, window = (
        masking_utils.causal_mask_function,
        masking_utils.sliding_window_causal_mask_function,
    )
    top = {"causal": True, "alignment": "top_left"}
    assert options_of(causal) is None  # the model knows
    assert options_of(causal, allow_is_causal_skip=False) == top
    assert options_of(window(3)) == top | {"window_left": 2}
    chunks = masking_utils.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.int64))
    assert options_of(chunks) == top | {"chunk_size": 4}
    padding = torch.tensor([[1] * 6, [1] * 4 + [0] * 2]).bool()
    assert options_of(window(3), attention_mask=padding)["seqused_k"].tolist() == [6, 4]
    documents = options_of(window(3), attention_mask=padding.flip(-1))
    assert documents["document_k"].tolist() == [[0] * 6, [-1] * 2 + [0] * 4]
    assert documents["document_q"].tolist() == [[0] * 6]
    both = masking_utils.bidirectional_mask_function
    assert options_of(both, allow_is_bidirectional_skip=True) is None


def test_who_computes_with_a_mask_gets_the_real_one(monkeypatch):
    monkeypatch.undo()
    function = masking_utils.sliding_window_causal_mask_function(3)
    mask = _transformers_masks.make_mask(2, 6, 6, mask_function=function)
    real = masking_utils.sdpa_mask(2, 6, 6, mask_function=function, allow_is_causal_skip=False)
    with torch._C.DisableTorchFunctionSubclass():
        assert mask.untyped_storage().nbytes() == 1
    assert mask.shape == real.shape and mask.dtype == torch.bool
    for one, other in ((mask[:, :, 2:], real[:, :, 2:]), (mask & True, real), (~mask, ~real)):
        assert type(one) is torch.Tensor and torch.equal(one, other)
    unknown = masking_utils.or_masks(function, lambda b, h, q, k: k < 2)
    made = _transformers_masks.make_mask(
        2, 6, 6, mask_function=unknown, allow_is_causal_skip=False
    )
    assert type(made) is torch.Tensor and made[0, 0, 5].tolist() == [
        True,
        True,
        False,
        True,
        True,
        True,
    ]
