#include "cuda/sm90/backward/check_config.h"

namespace sirdar::sm90 {
namespace {

BackwardConfig with_tuning_of(const BackwardConfig& chosen, const BackwardConfig& config) {
  return with_fields_of(chosen, config, kBackwardKnobs);
}

KnobFault fault_between_fields(const BackwardConfig& c) {
  const auto fault = [](const char* name, int value, std::string allowed) {
    return KnobFault{fmt::format("{}={}", name, value), std::move(allowed)};
  };
  if (c.block_m % 64 != 0) return fault("block_m", c.block_m, "64 and 128 may be");
  if (c.block_m == 128 && !may_be_tall(c)) {
    return fault("block_m", 128, "128 query rows may have up to 64 columns, others 64");
  }
  if (c.num_sums == 3) return fault("num_sums", 3, "1, 2 and 4 may be");
  if (c.num_sums > 1 && !c.is_deterministic) {
    return fault("num_sums", c.num_sums, "a nondeterministic problem has one sum");
  }
  if (c.cluster_size == 2 && !may_cluster(c)) {
    return fault("cluster_size", 2,
                 "two blocks may share bf16 problems with a head_dim above 192 and no mask that "
                 "reads data, others have 1");
  }
  if (c.num_stages_bias > 0 && !may_stage_bias(c)) {
    return fault("num_stages_bias", c.num_stages_bias,
                 "without a bias, and above 128 columns, 0 may be");
  }
  if (c.mirrors_tail && !may_mirror(c)) {
    return {"mirrors_tail=true", "it wants a mask"};
  }
  if (c.converts_early && !c.is_deterministic) {
    return {"converts_early=true", "sums that are added to in any order are done at the end"};
  }
  if (c.num_spare > 0 && !c.converts_early) {
    return fault("num_spare", c.num_spare, "without converts_early 0 may be");
  }
  if (c.keeps_remainders && (c.packs_products || !may_keep_remainders(c))) {
    return {"keeps_remainders=true",
            "bf16 up to 128 columns whose logits have no slopes, without packs_products"};
  }
  if (c.num_slots > num_unit_barriers(c)) {
    return fault("num_slots", c.num_slots,
                 fmt::format("1 to {} may be, for more are never filled", num_unit_barriers(c)));
  }
  return {};
}

}  // namespace

KnobFault fault_of(const BackwardConfig& chosen, const BackwardConfig& config) {
  KnobFault fault = fault_of_problem(with_tuning_of(chosen, config), config);
  if (!fault.is_fault()) fault = fault_of_counts(config);
  if (!fault.is_fault()) fault = fault_between_fields(config);
  if (fault.is_fault()) return fault;
  return fault_of_room(chosen, config, shared_bytes(config), kMostSharedBytes);
}

}  // namespace sirdar::sm90
