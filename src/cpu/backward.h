// The CPU backward: from a planned call to items of work on an executor.
#pragma once

#include "cpu/backward_call.h"

namespace sirdar::cpu {

// Bytes of Args::workspace: scratch for each slot and a few numbers per query row.
size_t backward_workspace_bytes(const Problem& problem, const BackwardConfig& config);

// Writes every output; call.rows and call.dbias are filled in here.
void run_backward(BackwardCall& call, const Executor& executor);

}  // namespace sirdar::cpu
