"""flash_attn_config of FlashAttention-3: which parts were left out of a build. None were."""

CONFIG = {"build_flags": {}}
