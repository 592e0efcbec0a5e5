#include "cuda/sm90/forward/check_config.h"

#include <fmt/format.h>

namespace sirdar::sm90 {
namespace {

KnobFault fault_of_tile(const ForwardConfig& c) {
  const bool reads_data = c.has_mask_mod;
  if (c.block_n % 16 != 0 || (reads_data && c.block_n % 32 != 0)) {
    return {fmt::format("block_n={}", c.block_n),
            fmt::format("multiples of {} may be",
                        reads_data ? "32, under masks that read data," : "16")};
  }
  if (c.takes_turns && c.num_consumers == 1) {
    return {"takes_turns=true", "it wants two consumers or more"};
  }
  if (c.writes_max_logit && c.softmax != Softmax::classic) {
    return {"softmax=" + field_text(c.softmax), "max_logit wants classic"};
  }
  return {};
}

KnobFault fault_between_fields(const ForwardConfig& c) {
  if (c.trim > 0 && (c.mask != MaskForm::upper || c.has_mask_mod)) {
    return {fmt::format("trim={}", c.trim), "a causal mask alone may be trimmed, others have 0"};
  }
  if (c.cluster_size > 1 && (c.has_lengths || c.has_mask_mod || c.trim > 0)) {
    return {"cluster_size=2", "it wants equal lengths, no mask that reads data, and trim=0"};
  }
  if (c.num_q_buffers > 1 && hands_rows_over(c)) {
    return {fmt::format("num_q_buffers={}", c.num_q_buffers),
            "under masks 1 may be above 128 columns of v"};
  }
  const bool is_dealt_out = c.is_persistent && c.mask == MaskForm::full && !c.has_lengths &&
                            !c.has_mask_mod && c.cluster_size == 1;
  if (c.shares_last_round && (!is_dealt_out || c.bias != Bias::none || is_split(c))) {
    return {"shares_last_round=true",
            "it wants no mask, lengths or bias, is_persistent=true, num_splits=1 and "
            "cluster_size=1"};
  }
  if (is_split(c) && c.has_mask_mod) {
    return {fmt::format("num_splits={}", c.num_splits), "under masks that read data 1 may be"};
  }
  if (is_split(c) && (c.num_q_buffers > 1 || c.num_stages_bias > 0 || c.cluster_size > 1)) {
    return {fmt::format("num_splits={}", c.num_splits),
            "it wants num_q_buffers=1, num_stages_bias=0 and cluster_size=1"};
  }
  if (c.num_stages_bias > 0) {
    const bool is_short = c.bias == Bias::bf16 || c.bias == Bias::fp16;
    if (!is_short || c.block_n % 64 != 0 || c.cluster_size > 1 || c.num_packed_heads > 1) {
      return {fmt::format("num_stages_bias={}", c.num_stages_bias),
              "it wants a bias of 16 bits, block_n a multiple of 64, cluster_size=1 and "
              "num_packed_heads=1"};
    }
  }
  const int packed = c.num_packed_heads;
  if ((packed & (packed - 1)) != 0 || block_m(c) % packed != 0) {
    return {fmt::format("num_packed_heads={}", packed),
            fmt::format("powers of two that divide the tile's {} rows may be", block_m(c))};
  }
  const int skipped = (block_m(c) - 64 + c.block_n - 1) / c.block_n;
  if (c.trim > 0 && c.num_stages_v <= skipped) {
    return {fmt::format("num_stages_v={}", c.num_stages_v),
            fmt::format("with trim={} {} and more may be", c.trim, skipped + 1)};
  }
  return {};
}

}  // namespace

KnobFault fault_of(const ForwardConfig& chosen, const ForwardConfig& config) {
  KnobFault fault = fault_of_problem(with_fields_of(chosen, config, kForwardKnobs), config);
  if (!fault.is_fault()) fault = fault_of_counts(config);
  if (!fault.is_fault()) fault = fault_of_tile(config);
  if (!fault.is_fault()) fault = fault_between_fields(config);
  if (fault.is_fault()) return fault;
  return fault_of_room(chosen, config, shared_bytes(config), kMostSharedBytes);
}

}  // namespace sirdar::sm90
