// Which configuration of the Hopper backward serves a problem.
#pragma once

#include "cuda/sm90/backward/config.h"

#include <sirdar/problem.hpp>

#include <string>

namespace sirdar::sm90 {

// The same for any machine of this architecture. The problem must be one that cuda.sm90.backward
// supports. may_stage_bias: TMA reaches it, if there is one.
BackwardConfig choose_backward_config(const Problem& problem, bool may_stage_bias = true);

// "sirdar_bwd_bf16_d128_causal"
std::string entry_name(const BackwardConfig& config);

}  // namespace sirdar::sm90
