#include "cuda/sm90/forward/check_config.h"

#include <fmt/format.h>

namespace sirdar::sm90 {
namespace {

// Fields that decide how a problem is computed, and not what.
ForwardConfig with_tuning_of(ForwardConfig chosen, const ForwardConfig& config) {
  chosen.num_consumers = config.num_consumers;
  chosen.num_packed_heads = config.num_packed_heads;
  chosen.block_n = config.block_n;
  chosen.num_stages_k = config.num_stages_k;
  chosen.num_stages_v = config.num_stages_v;
  chosen.num_q_buffers = config.num_q_buffers;
  chosen.trim = config.trim;
  chosen.softmax = config.softmax;
  chosen.takes_turns = config.takes_turns;
  chosen.overlaps = config.overlaps;
  chosen.moves_registers = config.moves_registers;
  chosen.is_persistent = config.is_persistent;
  chosen.draws_items = config.draws_items;
  chosen.order = config.order;
  chosen.num_polynomial = config.num_polynomial;
  chosen.cluster_size = config.cluster_size;
  chosen.num_stages_bias = config.num_stages_bias;
  return chosen;
}

}  // namespace

std::string why_not(const ForwardConfig& chosen, const ForwardConfig& config) {
  if (config != with_tuning_of(chosen, config)) {
    return "element, head dimensions, mask, bias, has_... and writes_... follow from the problem "
           "and are no knobs";
  }
  if (!has_counts(config)) {
    return "num_consumers may be 1 to 4, num_packed_heads 1 to 128, block_n 16 to 256, stages 1 to "
           "16, num_q_buffers 1 to 8, trim 0 to 2, num_polynomial 0 to 16, num_stages_bias 0 to 8, "
           "cluster_size 1 or 2; another number is no kernel";
  }
  if (config.block_n % 16 != 0 || (config.has_mask_mod && config.block_n % 32 != 0)) {
    return fmt::format(
        "block_n={} must be a multiple of 16, of 32 with masks that read data, in a kernel",
        config.block_n);
  }
  if (config.trim > 0 && (config.mask != MaskForm::upper || config.has_mask_mod)) {
    return fmt::format("trim={} wants a causal mask alone in a kernel", config.trim);
  }
  if (config.cluster_size > 1 && (config.has_lengths || config.has_mask_mod || config.trim > 0)) {
    return "cluster_size=2 wants equal lengths, no mask that reads data, and trim=0 in a kernel";
  }
  if (config.takes_turns && config.num_consumers == 1) {
    return "num_consumers=1 wants takes_turns=false in a kernel";
  }
  if (config.writes_max_logit && config.softmax != Softmax::classic) {
    return "max_logit wants softmax=classic in a kernel";
  }
  if (shared_bytes(config) > kMostSharedBytes) {
    return fmt::format("tiles of {} bytes do not fit the {} of shared memory in a kernel",
                       shared_bytes(config), kMostSharedBytes);
  }
  if (!is_valid(config)) {
    return "these fields do not go together (num_stages_v with trim, num_stages_bias with block_n "
           "and packed heads, num_q_buffers with masks above 128 columns) in a kernel";
  }
  return {};
}

}  // namespace sirdar::sm90
