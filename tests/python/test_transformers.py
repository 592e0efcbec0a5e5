"""Models of transformers with random weights: attn_implementation="sirdar" against "eager"."""

import copy

import pytest
import torch
import transformers

import sirdar.transformers

transformers.logging.set_verbosity_error()
SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
GROUPED = SMALL | {"num_key_value_heads": 2}
CONFIGURATIONS = {
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "qwen": lambda: transformers.Qwen3Config(
        **GROUPED, head_dim=16, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "gemma": lambda: transformers.Gemma2Config(
        **GROUPED,
        head_dim=16,
        sliding_window=4,
        attn_logit_softcapping=5.0,
        query_pre_attn_scalar=16,
    ),
    "gpt-oss": lambda: transformers.GptOssConfig(
        **GROUPED, head_dim=16, sliding_window=4, num_local_experts=2, num_experts_per_tok=2
    ),
    "mistral": lambda: transformers.MistralConfig(**GROUPED, sliding_window=4),
}


@pytest.fixture(autouse=True, scope="module")
def registered():
    sirdar.transformers.register()


def pair(config, kind=transformers.AutoModelForCausalLM):
    """The same model twice: (eager, sirdar)."""
    torch.manual_seed(0)
    eager = kind.from_config(copy.deepcopy(config), attn_implementation="eager")
    ours = kind.from_config(copy.deepcopy(config), attn_implementation="sirdar")
    for module in eager.modules():  # sinks are made without values
        if hasattr(module, "sinks"):
            torch.nn.init.normal_(module.sinks)
    ours.load_state_dict(eager.state_dict())
    implementations = [model.config._attn_implementation for model in (eager, ours)]
    assert implementations == ["eager", "sirdar"]  # a model keeps the configuration it is given
    return eager, ours


def tokens(*shape):
    return torch.randint(1, 60, shape, generator=torch.Generator().manual_seed(1))


def same(one, other, shown=None):
    if shown is not None:
        one, other = one[shown], other[shown]
    torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)


def same_gradients(eager, ours, *losses):
    for loss in losses:
        loss.backward()
    largest = max(p.grad.abs().max().item() for p in eager.parameters() if p.grad is not None)
    for (name, one), (_, other) in zip(eager.named_parameters(), ours.named_parameters()):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None:
            # Some gradients are 0 but for rounding: a bias of all keys changes nothing.
            scale = max(one.grad.abs().max().item(), 1e-3 * largest)
            assert (one.grad - other.grad).abs().max().item() <= 1e-4 * scale, name


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_decoders_padded_and_trained(name):
    eager, ours = pair(CONFIGURATIONS[name]())
    eager.train(), ours.train()
    ids, shown = tokens(3, 9), torch.ones(3, 9, dtype=torch.long)
    shown[0, :3] = 0  # padded on the left
    shown[1, 7:] = 0  # and on the right
    before = torch.nn.functional.pad(
        shown[:, :-1], (1, 0)
    )  # a label is predicted by the token before
    labels = ids.masked_fill((shown & before) == 0, -100)
    results = [model(ids, attention_mask=shown, labels=labels) for model in (eager, ours)]
    same(results[0].logits, results[1].logits, shown.bool())
    same(results[0].loss, results[1].loss)
    same_gradients(eager, ours, results[0].loss, results[1].loss)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_decoders_packed(name):
    eager, ours = pair(CONFIGURATIONS[name]())
    ids = tokens(1, 11)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 1]])
    results = [
        model.eval()(ids, position_ids=positions, use_cache=False).logits for model in (eager, ours)
    ]
    same(*results)
    if name != "gpt-oss":  # whose masks are made without positions, in eager too
        same(results[1][:, 6:9], ours(ids[:, 6:9]).logits)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_decoders_packed_by_lengths(name):
    _, ours = pair(CONFIGURATIONS[name]())
    ids, starts = tokens(1, 11), torch.tensor([0, 6, 9, 11], dtype=torch.int32)
    packed = ours.eval()(
        ids, position_ids=torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 1]]), use_cache=False,
        cu_seq_lens_q=starts, cu_seq_lens_k=starts, max_length_q=6, max_length_k=6,
    ).logits  # fmt: skip
    for first, last in ((0, 6), (6, 9), (9, 11)):
        same(packed[:, first:last], ours(ids[:, first:last], use_cache=False).logits)


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("cache", [None, "static"])
def test_decoders_generate(name, cache):
    eager, ours = pair(CONFIGURATIONS[name]())
    ids, shown = tokens(2, 7), torch.ones(2, 7, dtype=torch.long)
    shown[0, :2] = 0
    options = {
        "attention_mask": shown, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0,
        "eos_token_id": None, "output_logits": True, "return_dict_in_generate": True,
        "cache_implementation": cache, "disable_compile": True,
    }  # fmt: skip
    wanted, actual = (model.eval().generate(ids, **options) for model in (eager, ours))
    for one, other in zip(wanted.logits, actual.logits, strict=True):
        same(one, other)


def test_bert():
    config = transformers.BertConfig(
        **SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    eager, ours = pair(config, transformers.AutoModel)
    eager.train(), ours.train()
    ids, shown = tokens(3, 9), torch.ones(3, 9, dtype=torch.long)
    shown[1, 5:] = 0
    results = [model(ids, attention_mask=shown).last_hidden_state for model in (eager, ours)]
    same(*results, shown.bool())
    weights = torch.linspace(-1, 1, results[0].numel()).view(results[0].shape) * shown[..., None]
    same_gradients(eager, ours, *((result * weights).sum() for result in results))


def test_vit():
    config = transformers.ViTConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=16,
        patch_size=4,
    )  # fmt: skip
    eager, ours = pair(config, transformers.AutoModel)
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    results = [model(pixels).last_hidden_state for model in (eager, ours)]
    same(*results)
    same_gradients(eager, ours, *(result.sin().sum() for result in results))


def test_t5_with_its_learned_position_bias():
    config = transformers.T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    eager, ours = pair(config, transformers.AutoModelForSeq2SeqLM)
    ids, shown = tokens(2, 9), torch.ones(2, 9, dtype=torch.long)
    shown[0, 6:] = 0
    results = [
        model(input_ids=ids, attention_mask=shown, labels=ids[:, :5].contiguous())
        for model in (eager, ours)
    ]
    same(results[0].logits, results[1].logits)
    same_gradients(eager, ours, results[0].loss, results[1].loss)


def test_attention_weights_are_refused():
    _, ours = pair(CONFIGURATIONS["llama"]())
    with pytest.raises(NotImplementedError, match="^output_attentions"):
        ours(tokens(1, 3), output_attentions=True)


def test_a_model_with_attention_of_its_own_is_refused():
    config = transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4)
    _, ours = pair(config)
    with pytest.raises(NotImplementedError, match="^attn_implementation: .*bloom.* by itself"):
        ours(tokens(1, 3))


def test_generating_with_attention_of_its_own_is_refused():
    """Masks of a static cache are made by generate(), not by the model."""
    config = transformers.XGLMConfig(
        vocab_size=64, d_model=32, ffn_dim=48, num_layers=1, attention_heads=4, max_position_embeddings=64
    )
    _, ours = pair(config)
    shown = torch.ones(2, 5, dtype=torch.long)
    shown[0, :2] = 0
    for cache in (None, "static"):
        with pytest.raises(NotImplementedError, match="^attn_implementation: .*xglm.* by itself"):
            ours.generate(
                tokens(2, 5), attention_mask=shown, max_new_tokens=2, pad_token_id=0, cache_implementation=cache
            )
