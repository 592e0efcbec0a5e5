"""What of flash_attn.layers attention itself needs."""
