"""FlashAttention-2's interface, computed by this library: flash_attn's public names, signatures,
defaults and return values. sirdar.compat.install() makes `import flash_attn` find this."""

from .flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from . import bert_padding, layers  # noqa: F401
from .layers import rotary  # noqa: F401

__version__ = "2.8.3"  # of the interface

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
