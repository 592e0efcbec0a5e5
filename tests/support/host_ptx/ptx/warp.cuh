#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

// A warp of one lane.
inline float shfl_xor(float value, int) { return value; }
inline uint32_t shfl_xor(uint32_t value, int) { return value; }

}  // namespace sirdar::ptx
