// Which configuration of the Hopper backward serves a problem.
#pragma once

#include "cuda/sm90/backward/config.h"

#include <sirdar/problem.hpp>

#include <string>

namespace sirdar::sm90 {

// The same for any machine of this architecture. The problem must be one that cuda.sm90.backward
// supports. may_stage_bias: TMA reaches it, if there is one.
BackwardConfig choose_backward_config(const Problem& problem, bool may_stage_bias = true);

// Whether its chunks are made of whole query tiles and key blocks, and so are sequences of their
// own to whoever walks them (BackwardConfig::has_chunks). Problems by whose positions something is
// looked up are not among them, nor are lengths.
bool has_whole_chunks(const Problem& problem);
// The same walks in a batch that has chunks as sequences; other problems as they are. Of such a
// problem work is laid out, and not what lies where in memory.
Problem walked_problem(const Problem& problem);

// "sirdar_bwd_bf16_d128_causal"
std::string entry_name(const BackwardConfig& config);

}  // namespace sirdar::sm90
