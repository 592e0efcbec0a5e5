"""Names below which FlashAttention keeps what it writes in Triton; nothing here needs Triton."""
