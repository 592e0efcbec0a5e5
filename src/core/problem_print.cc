// Problem -> text. The words are those of problem_string.cc, in one fixed order.
#include <fmt/format.h>

#include <iterator>

#include "core/problem_string.h"

namespace sirdar {
namespace {

class Printer {
 public:
  template <class... T>
  void add(fmt::format_string<T...> format, T&&... args) {
    if (!text_.empty()) text_ += ' ';
    fmt::format_to(std::back_inserter(text_), format, std::forward<T>(args)...);
  }
  void add_if(bool wanted, std::string_view word) {
    if (wanted) add("{}", word);
  }
  std::string text() && { return std::move(text_); }

 private:
  std::string text_;
};

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

std::string axes_word(const Axes& axes) {
  std::string word;
  if (axes.batch) word += 'b';
  if (axes.head) word += 'h';
  if (axes.query) word += 'q';
  if (axes.key) word += 'k';
  return word.empty() ? "1" : word;
}

void print_sizes(const Problem& p, Printer& out) {
  out.add("b{}", p.batch);
  out.add("sq{} sk{}", p.seqlen_q, p.seqlen_k);
  out.add("hq{} hkv{}", p.num_heads_q, p.num_heads_kv);
  out.add("d{}", p.head_dim);
  if (p.head_dim_v != 0) out.add("dv{}", p.head_dim_v);
  out.add("{}", name_of(p.dtype_q));
  if (p.dtype_kv != p.dtype_q) out.add("kv:{}", name_of(p.dtype_kv));
  if (p.dtype_out) out.add("out:{}", name_of(*p.dtype_out));
}

void print_layout(const Problem& p, Printer& out) {
  if (p.layout_q == Layout::ragged) out.add("ragged_q:{}", p.total_q);
  if (p.layout_kv == Layout::ragged) out.add("ragged_k:{}", p.total_k);
  const bool is_paged = p.layout_kv == Layout::paged;
  if (is_paged) out.add("paged{}", p.page_size);
  out.add_if(p.has_seqused_q, "seqused_q");
  out.add_if(p.has_seqused_k && !is_paged, "seqused_k");
}

void print_masks(const Problem& p, Printer& out) {
  const auto side = [](const std::optional<int64_t>& value) {
    return value ? std::to_string(*value) : std::string();
  };
  out.add_if(p.mask.is_causal, "causal");
  if (p.mask.window_left || p.mask.window_right)
    out.add("window:{},{}", side(p.mask.window_left), side(p.mask.window_right));
  if (p.mask.chunk_size != 0) out.add("chunk:{}", p.mask.chunk_size);
  out.add_if(p.mask.alignment == Alignment::top_left, "top-left");
  out.add_if(p.has_document, "document");
  if (p.has_mask_tensor) {
    if (p.mask_axes == Axes{})
      out.add("mask");
    else
      out.add("mask:{}", axes_word(p.mask_axes));
  }
}

void print_logits(const Problem& p, Printer& out) {
  if (p.softmax_scale) out.add("scale:{}", *p.softmax_scale);
  if (p.softcap != 0) out.add("softcap:{}", p.softcap);
  if (p.has_bias) {
    if (p.dtype_bias != DType::fp32)
      out.add("bias:{}:{}", axes_word(p.bias_axes), name_of(p.dtype_bias));
    else if (p.bias_axes != Axes{})
      out.add("bias:{}", axes_word(p.bias_axes));
    else
      out.add("bias");
  }
  out.add_if(p.has_alibi, "alibi");
  out.add_if(p.has_sink, "sink");
  if (p.dropout_p != 0) out.add("dropout:{}", p.dropout_p);
}

void print_expressions(const Problem& p, Printer& out) {
  if (!p.score_mod.empty()) out.add("score_mod:{}", quoted(p.score_mod));
  if (!p.mask_mod.empty()) out.add("mask_mod:{}", quoted(p.mask_mod));
  for (const ExpressionTensor& tensor : p.tensors)
    out.add("tensor:{}:{}:{}{}", tensor.name, name_of(tensor.dtype), tensor.rank,
            tensor.needs_grad ? ":grad" : "");
  for (const std::string& name : p.scalars) out.add("scalar:{}", name);
}

}  // namespace

std::string Problem::str() const {
  Printer out;
  out.add("{}", op == Op::backward ? "bwd" : "fwd");
  print_sizes(*this, out);
  print_layout(*this, out);
  print_masks(*this, out);
  print_logits(*this, out);
  print_expressions(*this, out);
  out.add_if(needs_lse, "lse");
  out.add_if(needs_max_logit, "max_logit");
  out.add_if(has_dlse, "dlse");
  out.add_if(needs_dbias, "dbias");
  out.add_if(needs_dsink, "dsink");
  out.add_if(!deterministic, "nondeterministic");
  out.add_if(batch_invariant, "batch_invariant");
  return std::move(out).text();
}

}  // namespace sirdar
