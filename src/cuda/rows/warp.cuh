// What a warp makes of numbers that its lanes hold.
#pragma once

#include "cuda/expression/modification.cuh"
#include "ptx/warp.cuh"

namespace sirdar::rows {

inline constexpr float kMinusInfinity = -language::kInfinity;

SIRDAR_DEVICE float warp_max(float x) {  // a NaN loses against a number
  for (int distance = 16; distance > 0; distance /= 2) {
    x = ptx::max_of(x, ptx::shfl_xor(x, distance));
  }
  return x;
}
SIRDAR_DEVICE float warp_sum(float x) {
  for (int distance = 16; distance > 0; distance /= 2) x += ptx::shfl_xor(x, distance);
  return x;
}
SIRDAR_DEVICE float from_lane(float x, int lane) {
  return ptx::float_of(ptx::shfl(ptx::bits_of(x), lane));
}
SIRDAR_DEVICE long long from_lane(long long x, int lane) {
  const auto bits = static_cast<uint64_t>(x);
  const uint32_t low = ptx::shfl(static_cast<uint32_t>(bits), lane);
  const uint32_t high = ptx::shfl(static_cast<uint32_t>(bits >> 32), lane);
  return static_cast<long long>(static_cast<uint64_t>(high) << 32 | low);
}

template <class Modification>
inline constexpr bool kIsModified = Modification::kScores || Modification::kMasks;
struct Nothing {};

}  // namespace sirdar::rows
