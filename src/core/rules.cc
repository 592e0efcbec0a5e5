#include "core/rules.h"

#include <fmt/format.h>

namespace sirdar {
namespace {

constexpr Rule kRules[] = {
    // The problem.
    {"V001", "op", "op, layouts and alignment have one of their listed values"},
    {"V002", "batch", "batch, seqlen_q, seqlen_k, total_q and total_k are 0 or more"},
    {"V003", "num_heads_q", "num_heads_q and num_heads_kv are 1 or more"},
    {"V004", "num_heads_q", "num_heads_q is a multiple of num_heads_kv"},
    {"V005", "head_dim", "head_dim is from 1 to 512"},
    {"V006", "head_dim_v", "head_dim_v is from 1 to 512, or 0 for the same as head_dim"},
    {"V007", "dtype_q", "dtype_q is fp32, bf16, fp16 or fp8_e4m3"},
    {"V008", "dtype_kv", "dtype_kv is dtype_q"},
    {"V009", "dtype_out", "dtype_out is dtype_q or fp32; for fp8 inputs bf16 or fp32"},
    {"V010", "layout_q", "queries are dense or ragged; only K and V may be paged"},
    {"V011", "total_q", "total_q and total_k are given for ragged sides only"},
    {"V012", "total_q", "total_q is at most batch * seqlen_q, total_k at most batch * seqlen_k"},
    {"V013", "page_size", "page_size is 1 or more with paged K/V, and 0 without"},
    {"V014", "has_seqused_k", "paged K/V come with seqused_k"},
    {"V015", "layout_kv", "the backward pass takes dense or ragged K/V"},
    {"V016", "dtype_q", "the backward pass takes fp32, bf16 or fp16"},
    {"V017", "seqlen_q", "every tensor of the problem has fewer than 2^60 elements"},
    {"V018", "window_left", "a window side is 0 or more, or left out for unbounded"},
    {"V019", "chunk_size", "chunk_size is 1 or more, or 0 for none"},
    {"V020", "alignment", "top-left alignment comes with a causal, window or chunk mask"},
    {"V021", "softmax_scale", "softmax_scale is finite"},
    {"V022", "softcap", "softcap is finite, positive and no subnormal number, or 0 for none"},
    {"V023", "dropout_p", "dropout_p is at least 0 and less than 1"},
    {"V024", "mask_axes", "mask_axes are set only with a mask tensor"},
    {"V025", "bias_axes", "bias_axes and dtype_bias are set only with a bias"},
    {"V026", "dtype_bias", "dtype_bias is fp32, bf16 or fp16"},
    {"V027", "has_dlse",
     "dlse, dbias, dsink, tensor gradients and deterministic = false belong to the backward pass"},
    {"V028", "needs_lse", "lse and max_logit are outputs of the forward pass only"},
    {"V029", "needs_dbias", "a gradient is asked only of what the problem has"},
    {"V030", "tensors",
     "names are identifiers that the language does not use itself, each given once"},
    {"V031", "tensors", "an expression tensor is fp32, int32 or boolean, of rank 1 to 4"},
    {"V032", "tensors", "only an fp32 expression tensor has a gradient"},
    {"V033", "tensors", "every tensor and scalar is read by an expression"},
    {"V034", "score_mod",
     "score_mod and mask_mod are expressions of at most 16384 bytes (docs/expressions.md)"},
    {"V035", "seqlen_q",
     "with an expression, batch, num_heads_q, seqlen_q and seqlen_k are at most 2^31 - 1"},
    // The arguments of a run.
    {"V040", "q", "what the problem asks for is present"},
    {"V041", "q", "what the problem does not ask for is absent"},
    {"V042", "q", "a tensor has the rank of its description"},
    {"V043", "q", "a tensor has the shape of its description"},
    {"V044", "q", "a tensor has the dtype of the problem"},
    {"V045", "q", "the last axis of q, k, v, out and their gradients has stride 1"},
    {"V046", "q", "data is aligned to the element size"},
    {"V047", "q", "the bytes of a tensor lie inside the address space"},
    {"V048", "out", "strides of outputs are positive"},
    {"V049", "out", "no two elements of an output share memory"},
    {"V050", "out", "an output shares no memory with another tensor of the call"},
    {"V051", "workspace", "the workspace has at least the bytes of the plan, aligned to 64"},
    {"V052", "workspace", "the workspace shares no memory with a tensor of the call"},
    {"V053", "cu_seqlens_q", "cu_seqlens start at 0"},
    {"V054", "cu_seqlens_q", "cu_seqlens never decrease"},
    {"V055", "cu_seqlens_q", "cu_seqlens end at total"},
    {"V056", "cu_seqlens_q", "no sequence of cu_seqlens is longer than seqlen"},
    {"V057", "seqused_k", "seqused is from 0 to the length of its sequence"},
    {"V058", "page_table", "the page table has room for seqused_k keys"},
    {"V059", "page_table", "pages that are read are from 0 to num_pages - 1"},
    {"V060", "tensors", "the tensors given are those of the problem, each once"},
    {"V061", "scalars", "the scalars given are those of the problem, each once"},
    {"V062", "dtensors", "the tensor gradients given are those of the problem, each once"},
    {"V063", "dropout_seed", "dropout_seed and dropout_offset are 0 without dropout"},
    {"V064", "q", "a tensor has rank 0 to 4, sizes of 0 or more and a known dtype"},
    {"V065", "v", "paged k and v have as many pages, which one page table numbers"},
    // The arguments of a merge.
    {"V070", "out_a", "merge takes out_a, lse_a, out_b, lse_b, out and lse"},
    {"V071", "out_a",
     "outs are [batch, seqlen_q, num_heads_q, head_dim_v] or [total_q, num_heads_q, "
     "head_dim_v], all alike"},
    {"V072", "lse_a",
     "lses are [batch, num_heads_q, seqlen_q] or [num_heads_q, total_q], all alike"},
    {"V073", "out_a", "outs are fp32, bf16 or fp16, lses fp32"},
    {"V074", "out", "an output of merge is the whole of the a input, or apart from all inputs"},
};

}  // namespace

std::span<const Rule> rules() { return kRules; }

Status broken(std::string_view id, std::string_view argument, std::string_view sentence) {
  return Status(StatusCode::invalid_argument, fmt::format("{}: {}", argument, sentence),
                std::string(argument), std::string(id));
}

std::string rules_as_markdown() {
  std::string text =
      "# Rules\n\n"
      "Every rule about legal input, as the library checks it. An error carries the id. This file "
      "is\n"
      "generated from the table in `src/core/rules.cc`; a unit test compares them.\n\n"
      "| id | argument | rule |\n|---|---|---|\n";
  for (const Rule& rule : rules())
    text += fmt::format("| {} | `{}` | {} |\n", rule.id, rule.argument, rule.text);
  return text;
}

}  // namespace sirdar
