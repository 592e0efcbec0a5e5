// The last round of items, shared out evenly among thread blocks (last_round.cuh): when, and what
// follows for a launch.
#pragma once

#include "cuda/sm90/forward/config.h"
#include "cuda/sm90/forward/params.h"

#include <sirdar/problem.hpp>

namespace sirdar::sm90 {

// Whether that is worth it.
bool shares_last_round(const Problem& problem, const ForwardConfig& config);

// Flags, in the place of the counters where the kernel has none of its own left; then the slots.
inline constexpr size_t kFlagBytes = sizeof(int) * kSlotFlags * kMostSlots;
size_t slot_bytes(const ForwardConfig& config);

// For a launch with so many thread blocks, at most kMostSlots.
void share_last_round(const ForwardConfig& config, int grid, void* slots, ForwardParams& params);

}  // namespace sirdar::sm90
