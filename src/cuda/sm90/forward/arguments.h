// From a call's views to the parameters of one launch.
#pragma once

#include "cuda/sm90/forward/config.h"
#include "cuda/sm90/forward/params.h"

#include <sirdar/plan.hpp>

namespace sirdar::sm90 {

// Two ints that deal out the work items; in the workspace.
inline constexpr size_t kCounterBytes = 64;
// Workspaces that have counters in memory of the kernel's own instead.
inline constexpr int kMostWorkspaces = 512;
// The same where the last round is shared out, whose flags take more.
inline constexpr int kMostSharingWorkspaces = 32;

// Items are drawn by whoever is free where their lengths differ, dealt out in turn otherwise.
bool draws_tickets(const ForwardConfig& config);

// Ok, or which of the tensors TMA cannot reach, and why: addresses and strides are the caller's.
Status check_reach(const Problem& problem, const ForwardConfig& config, const Args& args);

// Which items there are, and in which order; the mask is there.
void add_work(const Problem& problem, const ForwardConfig& config, ForwardParams& params);

// The arguments must have been validated. Refuses what check_reach() does. `counter` is null unless
// draws_tickets().
Result<ForwardParams> make_params(const Problem& problem, const ForwardConfig& config,
                                  const Args& args, int* counter);

}  // namespace sirdar::sm90
