// From a call's views to the parameters of a backward pass.
#pragma once

#include "cuda/sm90/backward/config.h"
#include "cuda/sm90/backward/params.h"
#include "cuda/steps.h"
#include "expression/emit_cuda.h"

#include <sirdar/plan.hpp>

#include <vector>

namespace sirdar::sm90 {

// What lies where in the workspace, in bytes.
struct BackwardWorkspace {
  size_t start_lse, start_delta, dq_sum, turns, walk, lost, peaks, items_drawn, levels, far_rows,
      end;
};
BackwardWorkspace workspace_of(const Problem& problem, const BackwardConfig& config,
                               const expression::DeviceModification& modification);

// Ok, or which of the tensors the kernels cannot reach, and why: addresses and strides are the
// caller's.
Status check_reach(const Problem& problem, const BackwardConfig& config, const Args& args);

// The kernels. The first three run in this order; others before and behind them, where a problem
// has what they are for. Behind them all stand those of rows::companions_of().
enum class BackwardPass : int { prepare, backward, convert, sink_gradient, cover, cover_walks };
std::vector<BackwardPass> passes_of(const Problem& problem);

// The arguments must have been validated, and there must be rows and keys; the modification is the
// problem's. Refuses what check_reach() does. num_sms: thread blocks that run at one time.
Result<std::vector<cuda::Step>> make_steps(const Problem& problem, const BackwardConfig& config,
                                           const expression::DeviceModification& modification,
                                           const Args& args, int num_sms);

}  // namespace sirdar::sm90
