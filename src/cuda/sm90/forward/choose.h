// Which configuration of the Hopper forward serves a problem.
#pragma once

#include "cuda/sm90/forward/config.h"

#include <sirdar/problem.hpp>

namespace sirdar::sm90 {

// Everything but num_threads-like run-time facts: the same for any machine of this architecture.
// The problem must be one that cuda.sm90.forward supports.
ForwardConfig choose_config(const Problem& problem);

// "sirdar_fwd_bf16_d128_causal_lse"
std::string entry_name(const ForwardConfig& config);

}  // namespace sirdar::sm90
