#include "cuda/sm90/forward/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "cuda/sm90/arguments.h"
#include "cuda/sm90/forward/last_round.h"
#include "cuda/sm90/forward/pack.h"
#include "cuda/sm90/forward/split.h"

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
    // 128 keys of a bias that consumers read do not fit the registers.
    config.block_n = config.bias == Bias::none ? 128 : 64;
    config.num_stages_k = config.num_stages_v = config.bias == Bias::none ? 2 : 3;
    config.trim = config.mask == MaskForm::upper ? 1 : 0;
    return;
  }
  config.block_n = config.bias != Bias::fp32 ? 64 : config.has_mask_mod ? 32 : 48;
  config.num_stages_k = 3;
  config.num_stages_v = 2;
  // Half blocks of 64 keys make ptxas serialise the products.
  config.trim = config.mask == MaskForm::upper ? 1 : 0;
}

// Tiles of few rows: packs whose rows fill one or two warpgroups. Deep rings, since what such items
// wait for is memory.
void shape_few(ForwardConfig& config, int64_t rows) {
  if (rows > 128) return;
  config.trim = 0;
  // The widest kernels of one warpgroup spill.
  const bool is_wide = config.head_dim > 192 || config.head_dim_v > 128;
  if (is_wide || (rows > 64 && config.num_consumers == 2)) return;
  config.num_consumers = rows > 64 ? 2 : 1;
  config.takes_turns = config.num_consumers > 1;
  // A block of 256 threads has all the registers it can use.
  config.moves_registers = config.num_consumers > 1;
  const bool has_wide_keys = config.head_dim > 128;
  config.num_q_buffers = has_wide_keys ? 1 : 2;
  config.block_n = config.bias == Bias::fp32 ? 64 : 128;
  config.num_stages_k = config.num_stages_v = has_wide_keys ? 2 : 3;
}

ForwardConfig config_of(const Problem& problem, bool may_stage_bias, int num_packed_heads) {
  ForwardConfig config;
  config.num_packed_heads = num_packed_heads;
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
  if (num_packed_heads > 1) {
    shape_few(config, problem.seqlen_q * num_packed_heads);
  } else if (may_stage_bias) {
    stage_bias(config, problem);
  }
  return config;
}

unsigned group_of(const Problem& problem) {
  return static_cast<unsigned>(std::clamp<int64_t>(problem.group_size(), 1, 1 << 20));
}

// The packed config with the fewest rows, and of those the one that loads K and V least often;
// nothing where no packing is possible.
std::optional<ForwardConfig> best_packed(const Problem& problem) {
  std::optional<ForwardConfig> best;
  if (problem.batch_invariant) return best;  // what pays depends on the batch
  const unsigned group = group_of(problem);
  for (unsigned heads = 2; heads <= std::min(128u, std::bit_ceil(group)); heads *= 2) {
    if (heads <= group && group % heads != 0) continue;
    const ForwardConfig config = config_of(problem, false, static_cast<int>(heads));
    if (!is_valid(config)) continue;
    if (best && busiest_rows(problem, config) > busiest_rows(problem, *best)) continue;
    if (check_packing(problem, static_cast<int>(heads)).ok()) best = config;
  }
  return best;
}

// Whether packs of heads have less to do where their keys are split, as those of few items are.
bool pays_split(const Problem& problem, const ForwardConfig& packed,
                const ForwardConfig& unpacked) {
  return choose_splits(problem, packed) > 1 &&
         8 * busiest_pairs(problem, packed) <= 7 * busiest_pairs(problem, unpacked);
}

ForwardConfig whole_config(const Problem& problem, bool may_stage_bias, const Given& given) {
  const std::optional<int> num_packed_heads = given.num_packed_heads;
  const ForwardConfig unpacked = config_of(problem, may_stage_bias, 1);
  if (num_packed_heads == 1 || problem.group_size() < 2) return unpacked;
  if (num_packed_heads) return config_of(problem, false, *num_packed_heads);
  const std::optional<ForwardConfig> packed = best_packed(problem);
  if (!packed) return unpacked;
  const bool is_better = pays(busiest_rows(problem, *packed), busiest_rows(problem, unpacked)) ||
                         (given.num_splits != 1 && pays_split(problem, *packed, unpacked));
  return is_better ? *packed : unpacked;
}

}  // namespace

ForwardConfig choose_config(const Problem& problem, bool may_stage_bias, const Given& given) {
  const bool is_split_by_hand = given.num_splits.value_or(1) > 1;
  const ForwardConfig whole = whole_config(problem, may_stage_bias && !is_split_by_hand, given);
  const int splits = given.num_splits ? *given.num_splits : choose_splits(problem, whole);
  if (splits > 1) return split_config(whole, splits);
  ForwardConfig config = whole;
  config.shares_last_round = shares_last_round(problem, whole);
  return config;
}

std::string packing_note(const Problem& problem, const ForwardConfig& config) {
  if (problem.group_size() < 2 || problem.num_heads_q == 0) return "";
  const int64_t unpacked = busiest_rows(problem, config_of(problem, true, 1));
  constexpr const char* kWhat = "the busiest of 132 multiprocessors multiplies";
  if (config.num_packed_heads > 1 && is_split(config) &&
      !pays(busiest_rows(problem, config), unpacked)) {
    return fmt::format(
        "{} query heads of a K/V head are rows of one tile, whose keys are then split further",
        heads_per_pack(problem, config));
  }
  if (config.num_packed_heads > 1) {
    return fmt::format(
        "{} query heads of a K/V head are rows of one tile: {} {} rows by each key, "
        "unpacked {}",
        heads_per_pack(problem, config), kWhat, busiest_rows(problem, config), unpacked);
  }
  constexpr const char* kUnpacked = "query heads of a K/V head have tiles of their own";
  if (problem.batch_invariant) return fmt::format("{}, whatever the batch", kUnpacked);
  const std::optional<ForwardConfig> packed = best_packed(problem);
  if (!packed) {
    const unsigned heads = std::bit_ceil(group_of(problem));
    if (heads > 128) {
      return fmt::format("{}: no power of two up to 128 divides or holds {} of them", kUnpacked,
                         group_of(problem));
    }
    const Status reason = check_packing(problem, static_cast<int>(heads));
    if (reason.ok()) return fmt::format("{}: none is packed with {} heads", kUnpacked, heads);
    return fmt::format("{}: {}", kUnpacked, reason.message());
  }
  return fmt::format("{}: {} {} rows by each key, with {} heads a tile {}", kUnpacked, kWhat,
                     unpacked, heads_per_pack(problem, *packed), busiest_rows(problem, *packed));
}

int spill_bytes_known(const ForwardConfig& config) {
  if (config.has_score_mod || config.has_mask_mod) return 512;
  if (is_split(config) && hands_rows_over(config)) return 64;
  if (config.shares_last_round && config.head_dim_v > 192) return 8;
  if (config.num_consumers >= 3) return is_split(config) ? 256 : 128;
  // The producer's, a few of them a key block.
  if (hands_rows_over(config) && (config.has_lengths || config.bias != Bias::none)) return 16;
  return 0;
}

std::string entry_name(const ForwardConfig& config) {
  std::string name = fmt::format(
      "sirdar_fwd_{}_d{}", config.element == Element::bf16 ? "bf16" : "fp16", config.head_dim);
  if (config.head_dim_v != config.head_dim) name += fmt::format("_dv{}", config.head_dim_v);
  if (config.num_packed_heads > 1) name += fmt::format("_pack{}", config.num_packed_heads);
  if (is_split(config)) name += "_split";
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
