// Rules that need no tensors, in the order of Problem's fields.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "core/rules.h"
#include "expression/names.h"

namespace sirdar {
namespace {

constexpr int64_t kMaxHeadDim = 512;
// The language counts positions, heads and sequences in 32 bits.
constexpr int64_t kMaxExpressionIndex = std::numeric_limits<int32_t>::max();

// Elements of a tensor that is described but perhaps not there yet; positions and byte counts must
// stay far from the ends of 64 bits.
constexpr int64_t kMaxElements = int64_t{1} << 60;

bool is_fp8(DType dtype) { return dtype == DType::fp8_e4m3 || dtype == DType::fp8_e5m2; }

bool is_float(DType dtype) {
  return dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16;
}

// A status of the expression parser as one of ours.
Status with_rule(std::string_view id, const Status& status) {
  const std::string& message = status.message();
  return Status(status.code(), message.ends_with('.') ? message : message + ".", status.argument(),
                std::string(id));
}

Status check_enums(const Problem& p) {
  const auto check = [](std::string_view name, auto value, int count) -> Status {
    if (static_cast<int>(value) < count) return {};
    return broken("V001", name,
                  fmt::format("value {} is not one of its {} values; use the enumeration's names.",
                              static_cast<int>(value), count));
  };
  if (Status status = check("op", p.op, 2); !status.ok()) return status;
  if (Status status = check("layout_q", p.layout_q, 3); !status.ok()) return status;
  if (Status status = check("layout_kv", p.layout_kv, 3); !status.ok()) return status;
  return check("alignment", p.mask.alignment, 2);
}

Status check_sizes(const Problem& p) {
  const std::pair<std::string_view, int64_t> sizes[] = {{"batch", p.batch},
                                                        {"seqlen_q", p.seqlen_q},
                                                        {"seqlen_k", p.seqlen_k},
                                                        {"total_q", p.total_q},
                                                        {"total_k", p.total_k}};
  for (const auto& [name, size] : sizes)
    if (size < 0) return broken("V002", name, fmt::format("{} is negative; use 0 or more.", size));
  const std::pair<std::string_view, int64_t> heads[] = {{"num_heads_q", p.num_heads_q},
                                                        {"num_heads_kv", p.num_heads_kv}};
  for (const auto& [name, count] : heads)
    if (count < 1) return broken("V003", name, fmt::format("{} is too few; use 1 or more.", count));
  if (p.num_heads_q % p.num_heads_kv != 0)
    return broken(
        "V004", "num_heads_q",
        fmt::format("{} is not a multiple of num_heads_kv = {}; every K/V head serves the "
                    "same number of query heads.",
                    p.num_heads_q, p.num_heads_kv));
  if (p.head_dim < 1 || p.head_dim > kMaxHeadDim)
    return broken(
        "V005", "head_dim",
        fmt::format("{} is not from 1 to {}; split or pad the heads.", p.head_dim, kMaxHeadDim));
  if (p.head_dim_v < 0 || p.head_dim_v > kMaxHeadDim)
    return broken("V006", "head_dim_v",
                  fmt::format("{} is not from 1 to {}; use 0 for the same as head_dim.",
                              p.head_dim_v, kMaxHeadDim));
  return {};
}

Status check_dtypes(const Problem& p) {
  if (!is_float(p.dtype_q) && p.dtype_q != DType::fp8_e4m3)
    return broken("V007", "dtype_q",
                  fmt::format("{} is not an input dtype; use fp32, bf16, fp16 or fp8_e4m3.",
                              name_of(p.dtype_q)));
  if (p.dtype_kv != p.dtype_q)
    return broken("V008", "dtype_kv",
                  fmt::format("{} differs from dtype_q = {}; convert one of the two.",
                              name_of(p.dtype_kv), name_of(p.dtype_q)));
  const DType out = p.output_dtype();
  const DType narrow = is_fp8(p.dtype_q) ? DType::bf16 : p.dtype_q;
  if (out != narrow && out != DType::fp32) {
    const std::string other = narrow == DType::fp32 ? "" : fmt::format("{} or ", name_of(narrow));
    return broken("V009", "dtype_out",
                  fmt::format("{} is not an output dtype for {} inputs; use {}fp32, or leave it "
                              "unset.",
                              name_of(out), name_of(p.dtype_q), other));
  }
  if (p.op == Op::backward && is_fp8(p.dtype_q))
    return broken(
        "V016", "dtype_q",
        fmt::format("{} has no backward pass; convert to bf16 first.", name_of(p.dtype_q)));
  return {};
}

Status check_total(std::string_view side, int64_t batch, int64_t seqlen, int64_t total,
                   bool is_ragged) {
  const std::string name = fmt::format("total_{}", side);
  if (!is_ragged) {
    if (total == 0) return {};
    return broken("V011", name,
                  fmt::format("{} is given for a side that is not ragged; use 0, or the ragged "
                              "layout.",
                              total));
  }
  int64_t most = 0;
  if (__builtin_mul_overflow(batch, seqlen, &most) || total <= most) return {};
  return broken("V012", name,
                fmt::format("{} rows are more than batch * seqlen_{} = {} * {}; seqlen_{} is the "
                            "longest length.",
                            total, side, batch, seqlen, side));
}

Status check_layouts(const Problem& p) {
  if (p.layout_q == Layout::paged)
    return broken("V010", "layout_q", "queries cannot be paged; use dense or ragged.");
  if (Status status =
          check_total("q", p.batch, p.seqlen_q, p.total_q, p.layout_q == Layout::ragged);
      !status.ok())
    return status;
  if (Status status =
          check_total("k", p.batch, p.seqlen_k, p.total_k, p.layout_kv == Layout::ragged);
      !status.ok())
    return status;
  const bool is_paged = p.layout_kv == Layout::paged;
  if (is_paged ? p.page_size < 1 : p.page_size != 0)
    return broken("V013", "page_size",
                  fmt::format("{} does not fit the layout of K/V; use 1 or more when paged and 0 "
                              "otherwise.",
                              p.page_size));
  if (is_paged && !p.has_seqused_k)
    return broken("V014", "has_seqused_k",
                  "paged K/V need the length of every sequence; set it and pass seqused_k.");
  if (is_paged && p.op == Op::backward)
    return broken("V015", "layout_kv",
                  "paged K/V have no backward pass; gather them into a dense or ragged tensor.");
  return {};
}

// Products of sizes, without the overflow.
bool too_many(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product) ||
        product >= kMaxElements)
      return true;
  return false;
}

bool too_many(const Axes& axes, const Problem& p) {
  return too_many({axes.batch ? p.batch : 1, axes.head ? p.num_heads_q : 1,
                   axes.query ? p.seqlen_q : 1, axes.key ? p.seqlen_k : 1});
}

Status check_products(const Problem& p) {
  const int64_t widest = std::max(p.head_dim, p.value_dim());
  const auto refuse = [](std::string_view argument, std::string_view tensor) {
    return broken(
        "V017", argument,
        fmt::format("the sizes make {} larger than 2^60 elements; use smaller ones.", tensor));
  };
  if (too_many({p.batch, p.seqlen_q, p.num_heads_q, widest})) return refuse("seqlen_q", "q or out");
  if (too_many({p.batch, p.seqlen_k, p.num_heads_kv, widest})) return refuse("seqlen_k", "k or v");
  if (too_many({p.page_size, p.num_heads_kv, widest})) return refuse("page_size", "a page");
  if (p.has_mask_tensor && too_many(p.mask_axes, p)) return refuse("mask_axes", "mask");
  if (p.has_bias && too_many(p.bias_axes, p)) return refuse("bias_axes", "bias");
  return {};
}

Status check_mask(const Problem& p) {
  const std::pair<std::string_view, std::optional<int64_t>> sides[] = {
      {"window_left", p.mask.window_left}, {"window_right", p.mask.window_right}};
  for (const auto& [name, side] : sides)
    if (side && *side < 0)
      return broken(
          "V018", name,
          fmt::format("{} is negative; use 0 or more, or leave the side out for unbounded.",
                      *side));
  if (p.mask.chunk_size < 0)
    return broken("V019", "chunk_size",
                  fmt::format("{} is negative; use 1 or more, or 0 for none.", p.mask.chunk_size));
  const bool has_window = p.mask.window_left || p.mask.window_right;
  if (p.mask.alignment == Alignment::top_left && !p.mask.is_causal && !has_window &&
      p.mask.chunk_size == 0)
    return broken("V020", "alignment",
                  "top_left has no effect without a causal, window or chunk mask; add one or use "
                  "bottom_right.");
  if (!p.has_mask_tensor && p.mask_axes != Axes{})
    return broken(
        "V024", "mask_axes",
        "they are set although there is no mask tensor; set has_mask_tensor or leave them.");
  return {};
}

Status check_logits(const Problem& p) {
  if (p.softmax_scale && !std::isfinite(*p.softmax_scale))
    return broken("V021", "softmax_scale",
                  fmt::format("{} is not finite; use a number, or leave it unset for "
                              "1/sqrt(head_dim).",
                              *p.softmax_scale));
  // Scores are divided by it as by a product with 1/softcap, which must be finite.
  if (p.softcap != 0 && !(std::isnormal(p.softcap) && p.softcap > 0))
    return broken("V022", "softcap",
                  fmt::format("{} is not a positive number from 1.2e-38 on; use one, or 0 for no "
                              "soft-capping.",
                              p.softcap));
  if (!(p.dropout_p >= 0 && p.dropout_p < 1))
    return broken(
        "V023", "dropout_p",
        fmt::format("{} is not a probability that a weight is dropped; use 0 or more, below 1.",
                    p.dropout_p));
  if (!p.has_bias && (p.bias_axes != Axes{} || p.dtype_bias != DType::fp32))
    return broken("V025", p.bias_axes != Axes{} ? "bias_axes" : "dtype_bias",
                  "it is set although there is no bias; set has_bias or leave it.");
  if (!is_float(p.dtype_bias))
    return broken(
        "V026", "dtype_bias",
        fmt::format("{} is not a dtype of a bias; use fp32, bf16 or fp16.", name_of(p.dtype_bias)));
  return {};
}

Status check_gradients(const Problem& p) {
  bool wants_dtensor = false;
  for (const ExpressionTensor& tensor : p.tensors) wants_dtensor |= tensor.needs_grad;
  const std::pair<std::string_view, bool> backward_only[] = {{"has_dlse", p.has_dlse},
                                                             {"needs_dbias", p.needs_dbias},
                                                             {"needs_dsink", p.needs_dsink},
                                                             {"tensors.needs_grad", wants_dtensor},
                                                             {"deterministic", !p.deterministic}};
  for (const auto& [name, wanted] : backward_only)
    if (wanted && p.op != Op::backward)
      return broken("V027", name,
                    "it belongs to the backward pass; leave it out, or ask for that pass.");
  const std::pair<std::string_view, bool> forward_only[] = {{"needs_lse", p.needs_lse},
                                                            {"needs_max_logit", p.needs_max_logit}};
  for (const auto& [name, wanted] : forward_only)
    if (wanted && p.op != Op::forward)
      return broken("V028", name,
                    "it is an output of the forward pass; clear it (backward always reads lse).");
  if (p.needs_dbias && !p.has_bias)
    return broken("V029", "needs_dbias", "there is no bias to differentiate; set has_bias.");
  if (p.needs_dsink && !p.has_sink)
    return broken("V029", "needs_dsink", "there is no sink to differentiate; set has_sink.");
  return {};
}

Status check_names(const Problem& p) {
  if (const Status status = expression::check_names(p.tensors, p.scalars); !status.ok())
    return with_rule("V030", status);
  if ((p.tensors.empty() && p.scalars.empty()) || !p.score_mod.empty() || !p.mask_mod.empty())
    return {};
  const bool is_tensor = !p.tensors.empty();
  return broken("V033", is_tensor ? "tensors" : "scalars",
                fmt::format("'{}' is given although no expression could read it; set score_mod or "
                            "mask_mod.",
                            is_tensor ? p.tensors[0].name : p.scalars[0]));
}

Status check_tensors(const Problem& p) {
  for (const ExpressionTensor& tensor : p.tensors) {
    const bool known = tensor.dtype == DType::fp32 || tensor.dtype == DType::int32 ||
                       tensor.dtype == DType::boolean;
    if (!known || tensor.rank < 1 || tensor.rank > kMaxRank)
      return broken(
          "V031", "tensors",
          fmt::format("'{}' is {} of rank {}; use fp32, int32 or boolean of rank 1 to {}.",
                      tensor.name, name_of(tensor.dtype), tensor.rank, kMaxRank));
    if (tensor.needs_grad && tensor.dtype != DType::fp32)
      return broken("V032", "tensors",
                    fmt::format("'{}' is {} and has no gradient; make it fp32 or clear needs_grad.",
                                tensor.name, name_of(tensor.dtype)));
  }
  return {};
}

Status check_expressions(const Problem& p) {
  if (Status status = check_tensors(p); !status.ok()) return status;
  if (Status status = check_names(p); !status.ok()) return status;
  if (p.score_mod.empty() && p.mask_mod.empty()) return {};
  const std::pair<std::string_view, int64_t> indices[] = {{"batch", p.batch},
                                                          {"num_heads_q", p.num_heads_q},
                                                          {"seqlen_q", p.seqlen_q},
                                                          {"seqlen_k", p.seqlen_k}};
  for (const auto& [name, size] : indices)
    if (size > kMaxExpressionIndex)
      return broken("V035", name,
                    fmt::format("{} is more than the {} that expressions can count; split it, or "
                                "leave out score_mod and mask_mod.",
                                size, kMaxExpressionIndex));
  const Result<expression::Modifications> parsed = expression::parse(p);
  if (parsed.ok()) return {};
  const std::string& argument = parsed.status().argument();
  const bool is_unread = argument == "tensors" || argument == "scalars";
  return with_rule(is_unread ? "V033" : "V034", parsed.status());
}

}  // namespace

Status validate(const Problem& p) {
  for (const auto check : {check_enums, check_sizes, check_dtypes, check_layouts, check_products,
                           check_mask, check_logits, check_gradients, check_expressions})
    if (Status status = check(p); !status.ok()) return status;
  return {};
}

}  // namespace sirdar
