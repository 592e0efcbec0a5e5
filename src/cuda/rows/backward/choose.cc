#include "cuda/rows/backward/choose.h"

#include <fmt/format.h>

#include "cuda/rows/forward/choose.h"

namespace sirdar::rows {

BackwardConfig choose_backward_config(const Problem& problem) {
  BackwardConfig config;
  config.element = element_of(problem.dtype_q);
  config.element_out = element_of(problem.output_dtype());
  config.bias = problem.has_bias ? element_of(problem.dtype_bias) : Element::none;
  config.columns = rounded_columns(static_cast<int>(problem.head_dim));
  config.columns_v = rounded_columns(static_cast<int>(problem.value_dim()));
  config.has_dropout = problem.dropout_p > 0;
  return config;
}

std::string entry_name(const BackwardConfig& config, std::string_view pass) {
  std::string name = fmt::format("sirdar_rows_{}", field_text(config.element));
  if (config.element_out != config.element)
    name += fmt::format("_{}", field_text(config.element_out));
  name += fmt::format("_d{}", config.columns);
  if (config.columns_v != config.columns) name += fmt::format("_dv{}", config.columns_v);
  if (config.bias != Element::none) name += "_bias";
  if (config.has_dropout) name += "_dropout";
  return fmt::format("{}_{}", name, pass);
}

}  // namespace sirdar::rows
