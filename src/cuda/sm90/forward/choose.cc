#include "cuda/sm90/forward/choose.h"

#include <fmt/format.h>

#include "cuda/sm90/arguments.h"

namespace sirdar::sm90 {
namespace {

// Tile shapes are measured rows (README.md, "Tried and rejected"): rows by keys, stages, Q buffers.
void shape_narrow(ForwardConfig& config, const Problem& problem) {
  const bool is_long = config.mask == MaskForm::full && problem.seqlen_k >= 8192 &&
                       problem.seqlen_q >= 2048 && !config.has_logits;
  if (is_long) {  // fewest instructions a score, but coarse
    config.num_consumers = 3;
    config.block_n = 128;
    config.num_stages_k = config.num_stages_v = 3;
    return;
  }
  config.num_consumers = 4;
  config.block_n = 64;
  config.num_stages_k = config.num_stages_v = 4;
  config.num_q_buffers = 3;
  config.takes_turns = false;
  config.trim = config.mask == MaskForm::upper ? 1 : 0;
}

void shape_middle(ForwardConfig& config) {
  if (config.bias == Bias::fp32) {  // 128 keys of it do not fit the registers
    config.block_n = 64;
    config.num_stages_k = config.num_stages_v = 4;
    return;
  }
  config.block_n = 128;
  config.num_stages_v = 2;
  if (config.mask == MaskForm::full) {
    config.num_stages_k = 3;
    return;
  }
  config.num_stages_k = 2;
  config.num_q_buffers = 3;
  config.trim = config.mask == MaskForm::upper ? 1 : 0;
}

// Where a tile of it fits: 16 bits, and an entry of its own for each pair.
void stage_bias(ForwardConfig& config, const Problem& problem) {
  const bool is_narrow = config.bias == Bias::bf16 || config.bias == Bias::fp16;
  const Axes& axes = problem.bias_axes;
  if (!is_narrow || !axes.query || !axes.key || problem.seqlen_k == 0) return;
  if (std::max(config.head_dim, config.head_dim_v) > 128) return;
  const bool is_small = std::max(config.head_dim, config.head_dim_v) <= 64;
  config.num_stages_bias = is_small ? 2 : 1;
  config.num_stages_k = config.num_stages_v = 2;
  config.num_q_buffers = 2;
}

void shape_wide(ForwardConfig& config) {
  config.num_q_buffers = 1;
  if (config.head_dim_v <= 128 && config.head_dim <= 192) {
    config.block_n = 128;
    config.num_stages_k = config.num_stages_v = 2;
    config.trim = config.mask == MaskForm::upper ? 1 : 0;
    return;
  }
  config.block_n = 64;
  config.num_stages_k = 3;
  config.num_stages_v = 2;
  // Half blocks of 64 keys make ptxas serialise the products.
  config.trim = config.mask == MaskForm::upper ? 1 : 0;
}

}  // namespace

ForwardConfig choose_config(const Problem& problem, bool may_stage_bias) {
  ForwardConfig config;
  config.element = problem.dtype_q == DType::fp16 ? Element::fp16 : Element::bf16;
  config.head_dim = static_cast<int>(problem.head_dim);
  config.head_dim_v = static_cast<int>(problem.value_dim());
  config.mask = mask_form(problem.mask);
  config.has_lengths = problem.layout_q == Layout::ragged || problem.layout_kv == Layout::ragged ||
                       problem.has_seqused_q || problem.has_seqused_k || problem.seqlen_k == 0;
  config.has_softcap = problem.softcap > 0;
  config.has_alibi = problem.has_alibi;
  const Mask& mask = problem.mask;
  const bool sees_no_later_key = mask.is_causal || mask.window_right == 0;
  config.is_alibi_one_sided =
      config.has_alibi && sees_no_later_key && mask.alignment == Alignment::bottom_right;
  config.bias = bias_form(problem);
  config.has_score_mod = !problem.score_mod.empty();
  config.has_mask_mod =
      problem.has_document || problem.has_mask_tensor || !problem.mask_mod.empty();
  // A reference taken as the maximum score times the scale wants a positive scale.
  config.has_logits = config.has_softcap || config.has_alibi || problem.has_bias ||
                      config.has_score_mod || !(problem.scale() > 0);
  config.has_sink = problem.has_sink;
  config.writes_lse = problem.needs_lse;
  config.writes_max_logit = problem.needs_max_logit;
  const bool is_modified = config.has_score_mod || config.has_mask_mod || config.bias != Bias::none;
  // Guarded, the caller's expression stands in the kernel twice more.
  if (config.has_score_mod) config.softmax = Softmax::conditional;
  if (problem.needs_max_logit) config.softmax = Softmax::classic;
  const int64_t widest = std::max(problem.head_dim, problem.value_dim());
  // Four warpgroups have no registers for a modification.
  if (widest <= 64 && !is_modified) {
    shape_narrow(config, problem);
  } else if (widest <= 128) {
    shape_middle(config);
  } else {
    shape_wide(config);
  }
  if (is_modified) config.trim = 0;
  if (may_stage_bias) stage_bias(config, problem);
  return config;
}

int spill_bytes_known(const ForwardConfig& config) {
  if (config.has_score_mod || config.has_mask_mod) return 512;
  return config.num_consumers >= 3 ? 128 : 0;
}

std::string entry_name(const ForwardConfig& config) {
  std::string name = fmt::format(
      "sirdar_fwd_{}_d{}", config.element == Element::bf16 ? "bf16" : "fp16", config.head_dim);
  if (config.head_dim_v != config.head_dim) name += fmt::format("_dv{}", config.head_dim_v);
  if (config.mask == MaskForm::upper) name += "_causal";
  if (config.mask == MaskForm::interval) name += "_interval";
  if (config.has_lengths) name += "_lengths";
  if (config.has_softcap) name += "_softcap";
  if (config.has_alibi) name += "_alibi";
  if (config.bias != Bias::none) name += "_bias";
  if (config.has_sink) name += "_sink";
  if (config.writes_lse) name += "_lse";
  if (config.writes_max_logit) name += "_max_logit";
  return name;
}

}  // namespace sirdar::sm90
