// Whether a config with fields of the caller's is a kernel, and one of the same problem.
#pragma once

#include "cuda/sm90/backward/config.h"
#include "cuda/sm90/knob_fault.h"

namespace sirdar::sm90 {

// Fields that decide how a problem is computed, and not what.
inline constexpr std::string_view kBackwardKnobs[] = {
    "block_m",        "num_stages_q",    "num_stages_dout", "num_ds",
    "num_slots",      "num_stages_bias", "num_sums",        "hop_steps",
    "splits_turns",   "cluster_size",    "is_persistent",   "mirrors_tail",
    "converts_early", "num_spare",       "packs_products",  "keeps_remainders"};

// `chosen`: the library's own choice for the problem, `config`: the same with the caller's fields.
KnobFault fault_of(const BackwardConfig& chosen, const BackwardConfig& config);

}  // namespace sirdar::sm90
