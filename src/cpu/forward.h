// The CPU forward: from a planned call to items of work on an executor.
#pragma once

#include "cpu/forward_call.h"

namespace sirdar::cpu {

// Bytes of Args::workspace: what expressions read, scratch for each slot, and the states of split
// tiles.
size_t forward_workspace_bytes(const Problem& problem, const ForwardConfig& config,
                               const Expressions* expressions);

void run_forward(const ForwardCall& call, const Executor& executor);

}  // namespace sirdar::cpu
