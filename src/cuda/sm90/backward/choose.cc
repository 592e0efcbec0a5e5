#include "cuda/sm90/backward/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cuda/sm90/arguments.h"

namespace sirdar::sm90 {
namespace {

bool is_narrow(const BackwardConfig& c) { return c.head_dim <= 64 && c.head_dim_v <= 64; }
bool is_medium(const BackwardConfig& c) { return !is_narrow(c) && !is_wide(c); }

// Stages and slots are measured rows (README.md): more slots let more of dQ be on its way where
// it waits for its turn. False, and nothing set, where they do not fit.
bool set_rings(BackwardConfig& config, int stages_q, int stages_dout, int num_ds, int slots) {
  BackwardConfig other = config;
  other.num_stages_q = stages_q;
  other.num_stages_dout = stages_dout;
  other.num_ds = num_ds;
  other.num_slots = slots;
  if (!is_valid(other)) return false;
  config = other;
  return true;
}

// Two blocks that tell each other dS add half as often: where sums are to be in a fixed order, and
// under a mask from so many keys on, below which the other shape is as fast. Not measured with
// modifications.
bool shape_cluster(BackwardConfig& config, int64_t seqlen_k) {
  constexpr int64_t kLeastKeysUnderAMask = 4096;
  if (!config.is_deterministic || is_modified(config)) return false;
  if (config.mask != MaskForm::full && seqlen_k < kLeastKeysUnderAMask) return false;
  BackwardConfig other = config;
  other.cluster_size = 2;
  if (!set_rings(other, 2, 1, 1, 1)) return false;
  config = other;
  return true;
}

// As much of everything as there is room for.
void shape_wide(BackwardConfig& config) {
  for (const auto& [stages_q, stages_dout, num_ds, slots] :
       {std::array{3, 3, 2, 2}, {2, 2, 2, 2}, {2, 2, 1, 2}, {2, 1, 2, 2}, {2, 2, 1, 1}}) {
    const bool is_measured = stages_q == stages_dout || !is_masked(config);
    if (is_measured && set_rings(config, stages_q, stages_dout, num_ds, slots)) return;
  }
}

constexpr int64_t kMostKeysOfFewSteps = 2048;

// Without a mask, whose work goes by rings: thread blocks stay, and those of long walks have more
// steps between additions to a tile.
void order_rings(BackwardConfig& config, int64_t seqlen_k) {
  if (!config.is_deterministic || is_wide(config)) return;
  config.is_persistent = true;
  if (is_narrow(config)) {
    config.hop_steps = 8;
  } else if (seqlen_k > kMostKeysOfFewSteps) {
    config.hop_steps = 4;
  }
}

// Keys that a row sees at most.
int64_t most_keys_seen(const Problem& problem) {
  const Mask& mask = problem.mask;
  int64_t keys = problem.seqlen_k;
  if (mask.chunk_size > 0) keys = std::min(keys, mask.chunk_size);
  if (mask.window_left && (mask.is_causal || mask.window_right)) {
    const int64_t right = mask.is_causal ? 0 : *mask.window_right;
    if (*mask.window_left < keys && right < keys) {
      keys = std::min(keys, *mask.window_left + 1 + right);
    }
  }
  return keys;
}

// Under a causal mask, or another one by positions.
void order_masked(BackwardConfig& config, const Problem& problem) {
  constexpr int64_t kMostKeysOfShortWalks = 2048;
  const bool is_causal = config.mask == MaskForm::upper;
  const bool has_chunks = !is_causal && problem.mask.chunk_size > 0;
  // In any order longest key blocks come first already.
  if (!config.is_deterministic && is_medium(config)) return;
  if (has_slopes(config)) return;
  if (!is_causal && (!is_medium(config) || is_modified(config))) return;
  config.mirrors_tail = is_causal || has_chunks;
  config.is_persistent = !is_wide(config) || !config.is_deterministic;
  const bool has_short_walks = most_keys_seen(problem) <= kMostKeysOfShortWalks;
  if ((is_causal || has_chunks) && is_medium(config) && !is_modified(config) && has_short_walks) {
    set_rings(config, 3, 3, 2, 2);
  }
}

// Under a mask that reads data. Walks of documents are short: their tail is no longer than what
// mirroring it costs.
void order_read(BackwardConfig& config, const Problem& problem) {
  const bool is_alone = !has_slopes(config) && !config.has_alibi && config.bias == Bias::none;
  if (!is_alone || !config.is_deterministic || is_wide(config)) return;
  config.mirrors_tail = is_medium(config) && !problem.has_document;
  config.is_persistent = problem.has_document;
  if (is_medium(config) && problem.has_document) {
    set_rings(config, 3, 3, 2, 2);
    config.converts_early = true;
    config.num_spare = 6;
  }
}

// fp16, with 65 to 128 columns.
void order_half(BackwardConfig& config, const Problem& problem) {
  if (!config.is_deterministic || !is_medium(config) || is_modified(config)) return;
  if (config.mask == MaskForm::full) order_rings(config, problem.seqlen_k);
  if (config.mask == MaskForm::upper) config.is_persistent = config.mirrors_tail = true;
}

// Which thread blocks take which key blocks, and when, as far as it is measured: a soft-cap without
// a mask, ALiBi and masks that read data with 65 to 128 columns, and documents up to 64.
void order_work(BackwardConfig& config, const Problem& problem) {
  if (config.has_lengths) return;
  BackwardConfig other = config;
  if (config.element != Element::bf16) {
    order_half(other, problem);
  } else if (config.has_mask_mod) {
    order_read(other, problem);
  } else if (config.has_score_mod || config.bias != Bias::none ||
             (is_modified(config) && !is_medium(config))) {
    return;
  } else if (config.mask == MaskForm::full) {
    order_rings(other, problem.seqlen_k);
  } else {
    order_masked(other, problem);
  }
  if (is_valid(other)) config = other;
}

// Multiprocessors that an early convert is left where thread blocks stay.
int spared_by(const BackwardConfig& config, const Problem& problem) {
  constexpr int64_t kShortWalk = 1024;
  if (!draws_items(config)) return 0;
  if (is_narrow(config)) return problem.seqlen_k <= kShortWalk ? 8 : 5;
  return config.mask == MaskForm::interval && problem.mask.chunk_size == 0 ? 4 : 7;
}

// Up to how many keys that a row sees convert runs beside the main kernel, as far as it is
// measured: what it gains is a smaller share of longer walks.
int64_t most_keys_of_early_convert(const BackwardConfig& c) {
  constexpr int64_t kOfPlainRings = 4096, kOfOthers = 2048;
  if (!c.is_deterministic || c.has_lengths) return 0;
  const bool is_bf16 = c.element == Element::bf16;
  bool is_measured = is_medium(c);
  if (is_modified(c)) {
    BackwardConfig rest = c;  // soft-cap without a mask, ALiBi with a causal one
    if (has_rings(c)) rest.has_softcap = false;
    if (c.mask == MaskForm::upper) rest.has_alibi = false;
    is_measured = is_measured && is_bf16 && !is_modified(rest);
  } else if (is_bf16) {
    if (has_rings(c)) return kOfPlainRings;
    is_measured = is_measured || (is_narrow(c) && c.mask == MaskForm::upper);
  } else {
    is_measured = is_measured && c.mask != MaskForm::interval;
  }
  return is_measured ? kOfOthers : 0;
}

void order_convert(BackwardConfig& config, const Problem& problem) {
  if (most_keys_seen(problem) > most_keys_of_early_convert(config)) return;
  config.converts_early = true;
  config.num_spare = spared_by(config, problem);
}

// Whether long walks beside a bias of fp32 are faster where blocks stay, with two dS: where that is
// timed.
bool stays_beside_fp32_bias(const BackwardConfig& c, int64_t seqlen_k) {
  const bool is_alone =
      c.element == Element::bf16 && !c.has_lengths && !has_slopes(c) && !c.has_alibi;
  return is_alone && is_medium(c) && has_rings(c) && seqlen_k >= kMostKeysOfFewSteps;
}

// A tile of a bias that has an entry for each pair takes the place of slots of dQ. fp32 has no room
// beside 128 query rows, and is slower where additions to a tile are two steps apart.
void stage_bias(BackwardConfig& config, const Axes& axes, int64_t seqlen_k) {
  if (config.bias == Bias::none || !axes.query || !axes.key || is_wide(config)) return;
  const bool is_fp32 = config.bias == Bias::fp32, is_tall = config.block_m == 128;
  BackwardConfig other = config;
  other.num_stages_bias = is_fp32 && is_tall ? 2 : 1;
  other.block_m = is_fp32 ? 64 : config.block_m;
  int num_ds = is_fp32 && is_tall ? 2 : 1, slots = is_fp32 || is_tall ? 3 : 4;
  if (is_fp32 && stays_beside_fp32_bias(config, seqlen_k)) {
    other.is_persistent = true;
    num_ds = slots = 2;
  }
  if (is_fp32 && seqlen_k > kMostKeysOfFewSteps) other.hop_steps = std::max(other.hop_steps, 4);
  if (set_rings(other, 2, 2, num_ds, slots)) config = other;
}

}  // namespace

bool has_whole_chunks(const Problem& problem) {
  constexpr int64_t kTilesAndBlocks = 128;  // rows of a whole number of any of them
  const int64_t size = problem.mask.chunk_size;
  const bool is_alone = !problem.has_document && !problem.has_mask_tensor && !problem.has_bias &&
                        !problem.has_alibi && problem.mask_mod.empty() && problem.score_mod.empty();
  const bool has_one_length = problem.layout_q != Layout::ragged &&
                              problem.layout_kv != Layout::ragged && !problem.has_seqused_q &&
                              !problem.has_seqused_k;
  // Chunks of queries begin where those of keys do.
  const bool is_square =
      problem.seqlen_q == problem.seqlen_k || problem.mask.alignment == Alignment::top_left;
  return is_alone && has_one_length && is_square && size > 0 && size % kTilesAndBlocks == 0 &&
         size < std::max(problem.seqlen_q, problem.seqlen_k);
}

Problem walked_problem(const Problem& problem) {
  if (!has_whole_chunks(problem)) return problem;
  Problem walked = problem;
  const int64_t size = problem.mask.chunk_size;
  walked.batch *= (std::max(problem.seqlen_q, problem.seqlen_k) + size - 1) / size;
  walked.seqlen_q = std::min(problem.seqlen_q, size);
  walked.seqlen_k = std::min(problem.seqlen_k, size);
  walked.mask.chunk_size = 0;
  return walked;
}

BackwardConfig choose_backward_config(const Problem& problem, bool may_stage_bias) {
  if (has_whole_chunks(problem)) {
    BackwardConfig config = choose_backward_config(walked_problem(problem), may_stage_bias);
    config.has_chunks = true;
    return config;
  }
  BackwardConfig config;
  config.element = problem.dtype_q == DType::fp16 ? Element::fp16 : Element::bf16;
  config.head_dim = static_cast<int>(problem.head_dim);
  config.head_dim_v = static_cast<int>(problem.value_dim());
  config.mask = mask_form(problem.mask);
  config.is_deterministic = problem.deterministic;
  config.has_lengths = problem.layout_q == Layout::ragged || problem.layout_kv == Layout::ragged ||
                       problem.has_seqused_q || problem.has_seqused_k;
  config.has_softcap = problem.softcap > 0;
  config.has_alibi = problem.has_alibi;
  config.bias = bias_form(problem);
  config.has_score_mod = !problem.score_mod.empty();
  config.has_mask_mod =
      problem.has_document || problem.has_mask_tensor || !problem.mask_mod.empty();
  if (is_narrow(config)) {
    config.block_m = 128;
    config.num_stages_dout = 2;
    config.hop_steps = 4;
    if (config.is_deterministic && is_masked(config)) set_rings(config, 2, 2, 1, 4);
  } else if (is_wide(config)) {
    if (!shape_cluster(config, problem.seqlen_k)) {
      // Under a mask neighbouring key blocks follow each other a step apart, and a tile has four
      // units.
      config.splits_turns = is_masked(config);
      shape_wide(config);
    }
  } else if (config.is_deterministic) {
    set_rings(config, 2, 2, 2, 4);
  }
  order_work(config, problem);
  order_convert(config, problem);
  if (may_stage_bias) stage_bias(config, problem.bias_axes, problem.seqlen_k);
  return config;
}

std::string entry_name(const BackwardConfig& config) {
  std::string name = fmt::format(
      "sirdar_bwd_{}_d{}", config.element == Element::bf16 ? "bf16" : "fp16", config.head_dim);
  if (config.head_dim_v != config.head_dim) name += fmt::format("_dv{}", config.head_dim_v);
  if (config.mask == MaskForm::upper) name += "_causal";
  if (config.mask == MaskForm::interval) name += "_interval";
  if (config.has_lengths) name += "_lengths";
  if (config.has_chunks) name += "_chunks";
  if (config.has_softcap) name += "_softcap";
  if (config.has_alibi) name += "_alibi";
  if (config.bias != Bias::none) name += "_bias";
  if (!config.is_deterministic) name += "_free";
  return name;
}

}  // namespace sirdar::sm90
