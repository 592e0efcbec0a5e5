// Which rows of accumulators a NaN or an infinity has reached, as bits.
#pragma once

#include "cuda/sm90/fragment.cuh"

namespace sirdar::sm90 {

// join(upper, lower), or of none join(0, 0): of a warp's sixteen rows those that are not finite.
// Bit 4 r of `upper` is row r, bit 4 r of `lower` row r + 8.
// kChains: additions that do not wait for each other, 1 or 2.
template <int kChains = 1, int kCount, class Join>
SIRDAR_DEVICE auto find_lost(const float (&sums)[kCount], Join join) {
  float upper[2] = {0, 0}, lower[2] = {0, 0};
  SIRDAR_UNROLL
  for (int i = 0; i < kCount; ++i) (is_lower_row(i) ? lower : upper)[i % kChains] += sums[i];
  constexpr float kInfinity = -kMinusInfinity;
  const auto is_lost = [](const float(&sum)[2]) {
    return !(ptx::absolute(kChains == 1 ? sum[0] : sum[0] + sum[1]) < kInfinity);
  };
  const bool lost_upper = is_lost(upper), lost_lower = is_lost(lower);
  if (!ptx::any_sync(lost_upper || lost_lower)) return join(0u, 0u);
  const auto by_row = [](uint32_t lanes) {  // lanes 4 i to 4 i + 3 hold a row
    return (lanes | lanes >> 1 | lanes >> 2 | lanes >> 3) & 0x11111111u;
  };
  return join(by_row(ptx::ballot_sync(lost_upper)), by_row(ptx::ballot_sync(lost_lower)));
}

}  // namespace sirdar::sm90
