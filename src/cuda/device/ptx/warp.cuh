// Exchange between the lanes of a warp. All 32 lanes take part; convergence, no memory order.
#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

SIRDAR_DEVICE float shfl_xor(float value, int lane_mask) {
  return __shfl_xor_sync(~0u, value, lane_mask);
}

SIRDAR_DEVICE uint32_t shfl_xor(uint32_t value, int lane_mask) {
  return __shfl_xor_sync(~0u, value, lane_mask);
}

SIRDAR_DEVICE uint32_t shfl(uint32_t value, int lane) { return __shfl_sync(~0u, value, lane); }

// Bit i: what lane i says.
SIRDAR_DEVICE uint32_t ballot_sync(bool predicate) { return __ballot_sync(~0u, predicate); }
SIRDAR_DEVICE bool any_sync(bool predicate) { return __any_sync(~0u, predicate) != 0; }

SIRDAR_DEVICE void nanosleep() { asm volatile("nanosleep.u32 0;" ::: "memory"); }

}  // namespace sirdar::ptx
