// The CPU backward: from a planned call to items of work on an executor.
#pragma once

#include "cpu/backward_call.h"

namespace sirdar::cpu {

// Bytes of Args::workspace: scratch for each slot and a few numbers per query row.
size_t backward_workspace_bytes(const Problem& problem, const BackwardConfig& config,
                                const Expressions* expressions);

// Writes every output, or none if memory cannot be had; call.rows, call.dbias and call.dtensors are
// filled in here.
Status run_backward(BackwardCall& call, const Executor& executor);

}  // namespace sirdar::cpu
