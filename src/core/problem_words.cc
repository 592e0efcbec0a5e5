// The table of words and how each reads its value.
#include "core/problem_string.h"

#include <charconv>

namespace sirdar {
namespace {

// The readers below return what is allowed when the text is not it, and nothing when it is.
std::string read_size(std::string_view text, int64_t& target) {
  const char* const last = text.data() + text.size();
  const bool has_digit = !text.empty() && text[0] >= '0' && text[0] <= '9';
  const auto [end, error] = std::from_chars(text.data(), last, target);
  return has_digit && error == std::errc() && end == last ? std::string() : std::string(kSize);
}

std::string read_number(std::string_view text, float& target) {
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, target);
  if (!text.empty() && error == std::errc() && end == last) return {};
  return "a number that fp32 holds";
}

std::string read_positive(std::string_view text, float& target) {
  float value = 0;
  const bool is_number = read_number(text, value).empty();
  if (!is_number || !(value > 0)) {
    return "a number above 0 that fp32 holds; leave the word out for none";
  }
  target = value;
  return {};
}

std::string read_dtype(std::string_view text, DType& target) {
  const Result<DType> dtype = parse_dtype(text);
  if (!dtype.ok()) return "a dtype such as fp32, bf16, fp16, fp8_e4m3";
  target = dtype.value();
  return {};
}

std::string read_axes(std::string_view text, Axes& target) {
  constexpr std::string_view kAllowed = "letters of bhqk in this order, or 1 for none of them";
  Axes axes{false, false, false, false};
  size_t at = 0;
  const auto take = [&](char letter, bool& axis) {
    if (at < text.size() && text[at] == letter) axis = true, ++at;
  };
  take('b', axes.batch);
  take('h', axes.head);
  take('q', axes.query);
  take('k', axes.key);
  if ((text.empty() || at != text.size()) && text != "1") return std::string(kAllowed);
  target = axes;
  return {};
}

std::string read_window(std::string_view text, Mask& mask) {
  constexpr std::string_view kAllowed =
      "LEFT,RIGHT, two whole numbers of which one may be left out for unbounded";
  const size_t comma = text.find(',');
  if (comma == std::string_view::npos || text.size() < 2) return std::string(kAllowed);
  const auto side = [](std::string_view part, std::optional<int64_t>& target) {
    int64_t value = 0;
    if (part.empty()) return true;
    if (!read_size(part, value).empty()) return false;
    target = value;
    return true;
  };
  const bool ok = side(text.substr(0, comma), mask.window_left) &&
                  side(text.substr(comma + 1), mask.window_right);
  return ok ? std::string() : std::string(kAllowed);
}

std::string read_quoted(std::string_view text, std::string& target) {
  constexpr std::string_view kAllowed = "an expression in double quotes";
  if (text == "\"\"")
    return std::string(kAllowed) + " and not empty: write one or leave the word out";
  if (text.size() < 3 || text.front() != '"' || text.back() != '"') return std::string(kAllowed);
  std::string plain;
  for (size_t i = 1; i + 1 < text.size(); ++i) {
    if (text[i] == '"') return std::string(kAllowed);
    if (text[i] == '\\' && ++i + 1 >= text.size()) return std::string(kAllowed);
    plain += text[i];
  }
  target = std::move(plain);
  return {};
}

std::string read_tensor(std::string_view text, std::vector<ExpressionTensor>& target) {
  constexpr std::string_view kAllowed = "NAME:DTYPE:RANK or NAME:DTYPE:RANK:grad";
  const std::vector<std::string_view> parts = split(text, ':');
  if (parts.size() < 3 || parts.size() > 4 || parts[0].empty()) return std::string(kAllowed);
  ExpressionTensor tensor;
  int64_t rank = 0;
  tensor.name = parts[0];
  const bool ok = read_dtype(parts[1], tensor.dtype).empty() && read_size(parts[2], rank).empty() &&
                  rank <= kMaxRank && (parts.size() == 3 || parts[3] == "grad");
  if (!ok) return std::string(kAllowed);
  tensor.rank = static_cast<int>(rank);
  tensor.needs_grad = parts.size() == 4;
  target.push_back(std::move(tensor));
  return {};
}

std::string read_bias(std::string_view text, Problem& problem) {
  const size_t colon = text.find(':');
  const std::string axes = read_axes(text.substr(0, colon), problem.bias_axes);
  if (!axes.empty() || colon == std::string_view::npos) return axes;
  return read_dtype(text.substr(colon + 1), problem.dtype_bias);
}

std::string read_ragged(std::string_view text, Draft& draft) {
  constexpr std::string_view kAllowed = "TOTAL_Q,TOTAL_K, two whole numbers";
  const size_t comma = text.find(',');
  const bool ok = comma != std::string_view::npos &&
                  read_size(text.substr(0, comma), draft.problem.total_q).empty() &&
                  read_size(text.substr(comma + 1), draft.problem.total_k).empty();
  draft.problem.layout_q = draft.problem.layout_kv = Layout::ragged;
  return ok ? std::string() : std::string(kAllowed);
}

using Value = std::string_view;

std::string on(bool& flag) {
  flag = true;
  return {};
}

std::string set_dtype(Draft& draft, DType dtype) {
  draft.problem.dtype_q = dtype;
  return {};
}

std::string set_ragged(Layout& layout, bool& fill) {
  layout = Layout::ragged;
  return on(fill);
}

const Word kWords[] = {
    {"fwd", Form::plain, "op",
     [](Draft& d, Value) {
       d.problem.op = Op::forward;
       return std::string();
     },
     "fwd", "the forward pass (the default)"},
    {"bwd", Form::plain, "op",
     [](Draft& d, Value) {
       d.problem.op = Op::backward;
       return std::string();
     },
     "bwd", "the backward pass"},
    {"b", Form::glued, "batch", [](Draft& d, Value v) { return read_size(v, d.problem.batch); },
     "bN", "sequences (default 1)"},
    {"s", Form::glued, "seqlen_q,seqlen_k",
     [](Draft& d, Value v) {
       const std::string error = read_size(v, d.problem.seqlen_q);
       d.problem.seqlen_k = d.problem.seqlen_q;
       return error;
     },
     "sN", "query rows and keys of a sequence, both N"},
    {"sq", Form::glued, "seqlen_q",
     [](Draft& d, Value v) { return read_size(v, d.problem.seqlen_q); }, "sqN",
     "query rows of a sequence"},
    {"sk", Form::glued, "seqlen_k",
     [](Draft& d, Value v) { return read_size(v, d.problem.seqlen_k); }, "skN",
     "keys of a sequence"},
    {"h", Form::glued, "num_heads_q,num_heads_kv",
     [](Draft& d, Value v) {
       const std::string error = read_size(v, d.problem.num_heads_q);
       d.problem.num_heads_kv = d.problem.num_heads_q;
       return error;
     },
     "hN", "query heads and K/V heads, both N (default 1)"},
    {"hq", Form::glued, "num_heads_q",
     [](Draft& d, Value v) { return read_size(v, d.problem.num_heads_q); }, "hqN", "query heads"},
    {"hkv", Form::glued, "num_heads_kv",
     [](Draft& d, Value v) { return read_size(v, d.problem.num_heads_kv); }, "hkvN",
     "K/V heads (default: as hq)"},
    {"d", Form::glued, "head_dim",
     [](Draft& d, Value v) { return read_size(v, d.problem.head_dim); }, "dN",
     "columns of q and k (default 64)"},
    {"dv", Form::glued, "head_dim_v",
     [](Draft& d, Value v) { return read_size(v, d.problem.head_dim_v); }, "dvN",
     "columns of v and out (default: as d)"},
    {"fp32", Form::plain, "dtype", [](Draft& d, Value) { return set_dtype(d, DType::fp32); },
     "fp32", "dtype of q, k and v (the default)"},
    {"bf16", Form::plain, "dtype", [](Draft& d, Value) { return set_dtype(d, DType::bf16); },
     "bf16", "dtype of q, k and v"},
    {"fp16", Form::plain, "dtype", [](Draft& d, Value) { return set_dtype(d, DType::fp16); },
     "fp16", "dtype of q, k and v"},
    {"fp8_e4m3", Form::plain, "dtype",
     [](Draft& d, Value) { return set_dtype(d, DType::fp8_e4m3); }, "fp8_e4m3",
     "dtype of q, k and v"},
    {"kv", Form::colon, "dtype_kv",
     [](Draft& d, Value v) {
       DType dtype{};
       const std::string error = read_dtype(v, dtype);
       d.dtype_kv = dtype;
       return error;
     },
     "kv:DTYPE", "dtype of k and v; any but that of q is refused (rule V008)"},
    {"out", Form::colon, "dtype_out",
     [](Draft& d, Value v) {
       DType dtype{};
       const std::string error = read_dtype(v, dtype);
       d.problem.dtype_out = dtype;
       return error;
     },
     "out:DTYPE", "dtype of out (default: as q, bf16 for fp8)"},
    {"ragged", Form::plain, "layout_q,layout_kv",
     [](Draft& d, Value) {
       set_ragged(d.problem.layout_q, d.fill_total_q);
       return set_ragged(d.problem.layout_kv, d.fill_total_k);
     },
     "ragged", "cu_seqlens on both sides; totals are batch times length"},
    {"ragged", Form::colon, "layout_q,layout_kv",
     [](Draft& d, Value v) { return read_ragged(v, d); }, "ragged:TOTAL_Q,TOTAL_K",
     "cu_seqlens on both sides, with the rows of all sequences"},
    {"ragged_q", Form::plain, "layout_q",
     [](Draft& d, Value) { return set_ragged(d.problem.layout_q, d.fill_total_q); }, "ragged_q",
     "cu_seqlens_q; the total is batch times length"},
    {"ragged_q", Form::colon, "layout_q",
     [](Draft& d, Value v) {
       d.problem.layout_q = Layout::ragged;
       return read_size(v, d.problem.total_q);
     },
     "ragged_q:TOTAL", "cu_seqlens_q, with the rows of all sequences"},
    {"ragged_k", Form::plain, "layout_kv",
     [](Draft& d, Value) { return set_ragged(d.problem.layout_kv, d.fill_total_k); }, "ragged_k",
     "cu_seqlens_k; the total is batch times length"},
    {"ragged_k", Form::colon, "layout_kv",
     [](Draft& d, Value v) {
       d.problem.layout_kv = Layout::ragged;
       return read_size(v, d.problem.total_k);
     },
     "ragged_k:TOTAL", "cu_seqlens_k, with the rows of all sequences"},
    {"paged", Form::glued, "layout_kv",
     [](Draft& d, Value v) {
       d.problem.layout_kv = Layout::paged;
       d.problem.has_seqused_k = true;
       return read_size(v, d.problem.page_size);
     },
     "pagedN", "K/V in pages of N keys, with page_table and seqused_k"},
    {"seqused_q", Form::plain, "has_seqused_q",
     [](Draft& d, Value) { return on(d.problem.has_seqused_q); }, "seqused_q",
     "query rows used of each sequence"},
    {"seqused_k", Form::plain, "has_seqused_k",
     [](Draft& d, Value) { return on(d.problem.has_seqused_k); }, "seqused_k",
     "keys used of each sequence"},
    {"causal", Form::plain, "mask.is_causal",
     [](Draft& d, Value) { return on(d.problem.mask.is_causal); }, "causal",
     "row i sees keys up to i + seqlen_k - seqlen_q"},
    {"causal", Form::colon, "mask.is_causal,mask.alignment",
     [](Draft& d, Value v) {
       if (v != "top-left") return std::string("top-left");
       d.problem.mask.alignment = Alignment::top_left;
       return on(d.problem.mask.is_causal);
     },
     "causal:top-left", "row i sees keys up to i"},
    {"window", Form::colon, "window",
     [](Draft& d, Value v) { return read_window(v, d.problem.mask); }, "window:LEFT,RIGHT",
     "keys besides the diagonal; an empty side is unbounded"},
    {"chunk", Form::colon, "chunk",
     [](Draft& d, Value v) {
       const std::string error = read_size(v, d.problem.mask.chunk_size);
       const bool is_one = error.empty() && d.problem.mask.chunk_size > 0;
       return std::string(is_one ? "" : "1 or more; leave the word out for none");
     },
     "chunk:N", "only keys of the same chunk of N positions"},
    {"top-left", Form::plain, "mask.alignment",
     [](Draft& d, Value) {
       d.problem.mask.alignment = Alignment::top_left;
       return std::string();
     },
     "top-left", "causal, window and chunk line up with the first key"},
    {"document", Form::plain, "has_document",
     [](Draft& d, Value) { return on(d.problem.has_document); }, "document",
     "only keys with the same document id"},
    {"mask", Form::plain, "has_mask_tensor",
     [](Draft& d, Value) { return on(d.problem.has_mask_tensor); }, "mask",
     "a boolean tensor over batch, head, query and key"},
    {"mask", Form::colon, "has_mask_tensor",
     [](Draft& d, Value v) {
       d.problem.has_mask_tensor = true;
       return read_axes(v, d.problem.mask_axes);
     },
     "mask:AXES", "a boolean tensor over these of bhqk; 1: over none"},
    {"scale", Form::colon, "softmax_scale",
     [](Draft& d, Value v) {
       float value = 0;
       const std::string error = read_number(v, value);
       d.problem.softmax_scale = value;
       return error;
     },
     "scale:X", "multiplies q k^T (default 1/sqrt(head_dim))"},
    {"softcap", Form::colon, "softcap",
     [](Draft& d, Value v) { return read_positive(v, d.problem.softcap); }, "softcap:X",
     "scores become X tanh(score / X)"},
    {"bias", Form::plain, "has_bias", [](Draft& d, Value) { return on(d.problem.has_bias); },
     "bias", "an fp32 tensor added to the scores"},
    {"bias", Form::colon, "has_bias",
     [](Draft& d, Value v) {
       d.problem.has_bias = true;
       return read_bias(v, d.problem);
     },
     "bias:AXES[:DTYPE]", "a bias over these of bhqk, in fp32, bf16 or fp16"},
    {"alibi", Form::plain, "has_alibi", [](Draft& d, Value) { return on(d.problem.has_alibi); },
     "alibi", "ALiBi slopes for each head"},
    {"sink", Form::plain, "has_sink", [](Draft& d, Value) { return on(d.problem.has_sink); },
     "sink", "one more logit for each head"},
    {"dropout", Form::colon, "dropout_p",
     [](Draft& d, Value v) { return read_positive(v, d.problem.dropout_p); }, "dropout:P",
     "probability that a weight is dropped"},
    {"score_mod", Form::colon, "score_mod",
     [](Draft& d, Value v) { return read_quoted(v, d.problem.score_mod); }, "score_mod:\"TEXT\"",
     "an expression; \\\" and \\\\ stand for a quote and a backslash"},
    {"mask_mod", Form::colon, "mask_mod",
     [](Draft& d, Value v) { return read_quoted(v, d.problem.mask_mod); }, "mask_mod:\"TEXT\"",
     "an expression; \\\" and \\\\ stand for a quote and a backslash"},
    {"tensor", Form::colon, "", [](Draft& d, Value v) { return read_tensor(v, d.problem.tensors); },
     "tensor:NAME:DTYPE:RANK[:grad]", "a tensor that the expressions read"},
    {"scalar", Form::colon, "",
     [](Draft& d, Value v) {
       d.problem.scalars.emplace_back(v);
       return std::string(v.empty() ? "a name" : "");
     },
     "scalar:NAME", "a number that the expressions read"},
    {"lse", Form::plain, "needs_lse", [](Draft& d, Value) { return on(d.problem.needs_lse); },
     "lse", "lse is an output"},
    {"max_logit", Form::plain, "needs_max_logit",
     [](Draft& d, Value) { return on(d.problem.needs_max_logit); }, "max_logit",
     "max_logit is an output"},
    {"dlse", Form::plain, "has_dlse", [](Draft& d, Value) { return on(d.problem.has_dlse); },
     "dlse", "backward: a gradient of lse is given"},
    {"dbias", Form::plain, "needs_dbias", [](Draft& d, Value) { return on(d.problem.needs_dbias); },
     "dbias", "backward: the gradient of the bias is wanted"},
    {"dsink", Form::plain, "needs_dsink", [](Draft& d, Value) { return on(d.problem.needs_dsink); },
     "dsink", "backward: the gradient of the sinks is wanted"},
    {"nondeterministic", Form::plain, "deterministic",
     [](Draft& d, Value) {
       d.problem.deterministic = false;
       return std::string();
     },
     "nondeterministic", "backward: bits may differ from run to run"},
    {"batch_invariant", Form::plain, "batch_invariant",
     [](Draft& d, Value) { return on(d.problem.batch_invariant); }, "batch_invariant",
     "the same bits whatever else is in the batch"},
};

}  // namespace

std::span<const Word> problem_words() { return kWords; }

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

}  // namespace sirdar
