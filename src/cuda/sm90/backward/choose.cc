#include "cuda/sm90/backward/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cuda/sm90/arguments.h"

namespace sirdar::sm90 {
namespace {

// As much of everything as there is room for.
void shape_wide(BackwardConfig& config) {
  for (const auto& [stages, num_ds, slots] :
       {std::array{3, 2, 2}, {2, 2, 2}, {2, 1, 2}, {2, 1, 1}}) {
    config.num_stages_q = config.num_stages_dout = stages;
    config.num_ds = num_ds;
    config.num_slots = slots;
    if (is_valid(config)) return;
  }
}

}  // namespace

BackwardConfig choose_backward_config(const Problem& problem) {
  BackwardConfig config;
  config.head_dim = static_cast<int>(problem.head_dim);
  config.head_dim_v = static_cast<int>(problem.value_dim());
  config.mask = mask_form(problem.mask);
  config.is_deterministic = problem.deterministic;
  config.has_lengths = problem.layout_q == Layout::ragged || problem.layout_kv == Layout::ragged ||
                       problem.has_seqused_q || problem.has_seqused_k;
  if (std::max(config.head_dim, config.head_dim_v) <= 64) {
    config.block_m = 128;
    config.num_stages_dout = 2;
  }
  if (is_wide(config)) shape_wide(config);
  return config;
}

std::string entry_name(const BackwardConfig& config) {
  std::string name = fmt::format(
      "sirdar_bwd_{}_d{}", config.element == Element::bf16 ? "bf16" : "fp16", config.head_dim);
  if (config.head_dim_v != config.head_dim) name += fmt::format("_dv{}", config.head_dim_v);
  if (config.mask == MaskForm::upper) name += "_causal";
  if (config.mask == MaskForm::interval) name += "_interval";
  if (config.has_lengths) name += "_lengths";
  if (!config.is_deterministic) name += "_free";
  return name;
}

}  // namespace sirdar::sm90
