"""The package in which later releases of FlashAttention-3 lie: flash_attn_3.flash_attn_interface, and
flash_attn_3._C, whose import means that torch.ops.flash_attn_3 is there."""

from .. import flash_attn_interface  # noqa: F401
from . import _C  # noqa: F401

__version__ = "3.0.0"  # of the interface
