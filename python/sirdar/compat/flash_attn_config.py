"""flash_attn_config of FlashAttention-3: which parts were left out of the build. None were."""

import collections

CONFIG = {"build_flags": collections.defaultdict(bool)}
