#include "cuda/rows/forward/choose.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sirdar::rows {
namespace {

constexpr std::string_view kWords[] = {"none", "fp32", "bf16", "fp16"};

// Fewer keys are not worth the adding up.
constexpr int64_t kFewestSharedKeys = 512;
constexpr int kFewRowsPerSm = 8;

// Rows that leave most of the GPU idle are shared by the warps of a block; not where bits must not
// depend on what else is in the batch.
int splits_of(const Problem& problem, const Device& device) {
  const int64_t rows = problem.batch * problem.num_heads_q * problem.seqlen_q;
  const bool is_short = rows < int64_t{kFewRowsPerSm} * device.num_sms;
  return is_short && problem.seqlen_k >= kFewestSharedKeys && !problem.batch_invariant ? kWarps : 1;
}

}  // namespace

Element element_of(DType dtype) {
  return dtype == DType::bf16   ? Element::bf16
         : dtype == DType::fp16 ? Element::fp16
                                : Element::fp32;
}

ForwardConfig choose_config(const Problem& problem, const Device& device) {
  ForwardConfig config;
  config.element = element_of(problem.dtype_q);
  config.element_out = element_of(problem.output_dtype());
  config.bias = problem.has_bias ? element_of(problem.dtype_bias) : Element::none;
  config.columns = rounded_columns(static_cast<int>(problem.head_dim));
  config.columns_v = rounded_columns(static_cast<int>(problem.value_dim()));
  config.splits = splits_of(problem, device);
  config.is_paged = problem.layout_kv == Layout::paged;
  config.has_dropout = problem.dropout_p > 0;
  return config;
}

std::string entry_name(const ForwardConfig& config) {
  std::string name = fmt::format("sirdar_rows_{}", field_text(config.element));
  if (config.element_out != config.element)
    name += fmt::format("_{}", field_text(config.element_out));
  name += fmt::format("_d{}", config.columns);
  if (config.columns_v != config.columns) name += fmt::format("_dv{}", config.columns_v);
  if (config.splits > 1) name += "_shared";
  if (config.is_paged) name += "_paged";
  if (config.bias != Element::none) name += "_bias";
  if (config.has_dropout) name += "_dropout";
  return name;
}

std::string field_text(Element element) { return std::string(kWords[static_cast<int>(element)]); }

Status parse_field(std::string_view text, Element& element) {
  for (int i = 0; i < static_cast<int>(std::size(kWords)); ++i) {
    if (kWords[i] != text) continue;
    element = static_cast<Element>(i);
    return {};
  }
  return {StatusCode::invalid_argument, fmt::format("one of {}", fmt::join(kWords, ", "))};
}

}  // namespace sirdar::rows
