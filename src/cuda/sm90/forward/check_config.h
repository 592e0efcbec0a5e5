// Whether a config with fields of the caller's is a kernel, and one of the same problem.
#pragma once

#include "cuda/sm90/forward/config.h"
#include "cuda/sm90/forward/config_names.h"
#include "cuda/sm90/knob_fault.h"

namespace sirdar::sm90 {

// Fields that decide how a problem is computed, and not what.
inline constexpr std::string_view kForwardKnobs[] = {
    "num_consumers",  "num_packed_heads",  "block_n",
    "num_stages_k",   "num_stages_v",      "num_q_buffers",
    "trim",           "softmax",           "takes_turns",
    "overlaps",       "moves_registers",   "is_persistent",
    "draws_items",    "shares_last_round", "order",
    "num_polynomial", "cluster_size",      "num_splits",
    "num_stages_bias"};

// `chosen`: the library's own choice for the problem, `config`: the same with the caller's fields.
KnobFault fault_of(const ForwardConfig& chosen, const ForwardConfig& config);

}  // namespace sirdar::sm90
