"""Checks that identifiers use the words of docs/glossary.md.

usage: check_names.py [ROOT]

Looks at identifiers only: comments and string literals may speak of other libraries' words. Exit code
1 and one line per violation, with the word to use instead.
"""

import pathlib
import re
import sys

# forbidden identifier -> the glossary's word
SYNONYMS = {
    "bs": "batch", "batch_size": "batch", "bsz": "batch",
    "s_q": "seqlen_q", "s_k": "seqlen_k", "qo_len": "seqlen_q", "kv_len": "seqlen_k",
    "seq_len": "seqlen_q or seqlen_k", "seq_len_q": "seqlen_q", "seq_len_k": "seqlen_k",
    "nnz_qo": "total_q", "num_tokens": "total_q or total_k",
    "h_q": "num_heads_q", "h_k": "num_heads_kv", "h_kv": "num_heads_kv", "nheads": "num_heads_q",
    "n_heads": "num_heads_q", "num_qo_heads": "num_heads_q", "num_kv_heads": "num_heads_kv",
    "hr": "group_size", "gqa_ratio": "group_size", "qhead_per_khead": "group_size",
    "d_qk": "head_dim", "d_v": "head_dim_v", "hdim": "head_dim", "head_size": "head_dim",
    "sm_scale": "softmax_scale", "scale_softmax": "softmax_scale",
    "logits_soft_cap": "softcap", "soft_cap": "softcap", "logit_cap": "softcap",
    "is_local": "window_left, window_right", "swa": "window_left, window_right",
    "softmax_lse": "lse", "logsumexp": "lse",
    "indptr": "cu_seqlens_q or cu_seqlens_k", "cu_seqlen": "cu_seqlens_q or cu_seqlens_k",
    "cache_seqlens": "seqused_k", "kv_len_arr": "seqused_k",
    "block_table": "page_table", "block_ids": "page_table", "kv_indices": "page_table",
    "attn_sink": "sink", "sinks": "sink", "s_aux": "sink",
    "scale_inv": "q_descale, k_descale, v_descale",
    "parallel_blocks": "num_splits", "num_sm_parts": "num_splits",
    "kBlockM": "block_m", "kBlockN": "block_n", "BLOCK_M": "block_m", "BLOCK_N": "block_n",
    "kStage": "num_stages", "PIPE": "num_stages",
}
# (file, identifier) -> why it may stay
ALLOWED = {}

SUFFIXES = {".h", ".hpp", ".cc", ".inl", ".c", ".cpp"}
TREES = ("include", "src", "cli", "tests", "fuzz", "bench", "examples")
# What is not an identifier: comments, string and character literals (raw strings first).
NOT_CODE = re.compile(
    r'R"(?P<d>[^(\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def blank(match):
    """Keeps the line numbers of what follows."""
    return "\n" * match.group(0).count("\n") + " "


def violations_of(root, path):
    name = path.relative_to(root).as_posix()
    code = NOT_CODE.sub(blank, path.read_text(encoding="utf-8"))
    for number, line in enumerate(code.splitlines(), start=1):
        if line.lstrip().startswith("#"):
            continue  # an include's path is not ours to name
        for word in WORD.findall(line):
            # members end in an underscore
            if word.rstrip("_") in SYNONYMS and (name, word) not in ALLOWED:
                yield f"{name}:{number}: {word}; the glossary's word is {SYNONYMS[word.rstrip('_')]}."


def main(arguments):
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent).resolve()
    files = [p for tree in TREES for p in sorted((root / tree).rglob("*")) if p.suffix in SUFFIXES]
    if not files:
        print(f"check_names: no source files below {root}", file=sys.stderr)
        return 2
    problems = [problem for path in files for problem in violations_of(root, path)]
    print("\n".join(problems) if problems else f"names: {len(files)} files use the glossary's words")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
