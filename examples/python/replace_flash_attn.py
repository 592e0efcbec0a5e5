"""Code that imports flash-attn, on a machine that has none: two lines before it, and it runs.

usage: replace_flash_attn.py

Below the line is what such code looks like: padded sequences are put end to end, attended to and padded
again; then one token after the other is decoded over a cache of pages.
"""

import sirdar.compat

sirdar.compat.install()

# ----------------------------------------------------------------------------------------------------

import torch  # noqa: E402
from flash_attn import flash_attn_func, flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache  # noqa: E402
from flash_attn.bert_padding import pad_input, unpad_input  # noqa: E402

HEADS, HEADS_KV, DIM, PAGE = 8, 2, 64, 16


def padded_batch():
    """A batch of texts of 120, 300 and 512 tokens; the largest difference to each text by itself."""
    lengths = torch.tensor([120, 300, 512])
    qkv = torch.randn(3, 512, 3, HEADS, DIM, requires_grad=True)
    is_token = torch.arange(512) < lengths[:, None]
    tokens, indices, cu_seqlens, longest, _ = unpad_input(qkv, is_token)
    out = flash_attn_varlen_qkvpacked_func(tokens, cu_seqlens, longest, causal=True)
    padded = pad_input(out, indices, 3, 512)
    padded.square().sum().backward()  # gradients go through it all
    worst = 0.0
    for b, length in enumerate(lengths.tolist()):
        alone = flash_attn_func(*qkv[b : b + 1, :length].unbind(2), causal=True)
        worst = max(worst, (alone[0] - padded[b, :length]).abs().max().item())
    assert qkv.grad[~is_token].eq(0).all()
    return worst


def decode(steps=40):
    """Appends tokens to a cache of pages; the largest difference to attention over all of them at once."""
    num_pages = -(-steps // PAGE)
    pages_k, pages_v = torch.zeros(2, num_pages, PAGE, HEADS_KV, DIM)
    page_table = torch.randperm(num_pages, dtype=torch.int32)[None]
    q, k, v = torch.randn(1, steps, HEADS, DIM), *torch.randn(2, 1, steps, HEADS_KV, DIM)
    outs = []
    for step in range(steps):
        length = torch.tensor([step], dtype=torch.int32)
        now = slice(step, step + 1)
        outs.append(
            flash_attn_with_kvcache(
                q[:, now], pages_k, pages_v, k[:, now], v[:, now],
                cache_seqlens=length, block_table=page_table, causal=True,
            )
        )  # fmt: skip
    whole = flash_attn_func(q, k, v, causal=True)
    return (torch.cat(outs, 1) - whole).abs().max().item()


def main():
    torch.manual_seed(0)
    for name, difference in (("padded batch", padded_batch()), ("decoding", decode())):
        print(f"{name:<14} largest difference {difference:.1e}")
        assert difference < 1e-5


if __name__ == "__main__":
    main()
