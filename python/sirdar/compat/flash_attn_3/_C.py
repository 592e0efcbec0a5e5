"""FlashAttention-3's extension module, of which others want only that it can be imported: the operators that it
would define are those of sirdar.compat.install()."""
