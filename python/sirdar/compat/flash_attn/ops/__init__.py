"""FlashAttention's `ops`: of them the rotation that others import."""
