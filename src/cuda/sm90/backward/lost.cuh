// Which rows of accumulators a NaN or an infinity has reached, as bits.
#pragma once

#include "cuda/sm90/fragment.cuh"

namespace sirdar::sm90 {

// Of a warp's sixteen rows those that are not finite: bit 4 r is row r, bit 4 r + 1 row r + 8.
template <int kCount>
SIRDAR_DEVICE uint32_t find_lost(const float (&sums)[kCount]) {
  float upper = 0, lower = 0;
  SIRDAR_UNROLL
  for (int i = 0; i < kCount; ++i) (is_lower_row(i) ? lower : upper) += sums[i];
  constexpr float kInfinity = -kMinusInfinity;
  const bool lost_upper = !(ptx::absolute(upper) < kInfinity);
  const bool lost_lower = !(ptx::absolute(lower) < kInfinity);
  if (!ptx::any_sync(lost_upper || lost_lower)) return 0;
  const auto by_row = [](uint32_t lanes) {  // lanes 4 i to 4 i + 3 hold a row
    return (lanes | lanes >> 1 | lanes >> 2 | lanes >> 3) & 0x11111111u;
  };
  return by_row(ptx::ballot_sync(lost_upper)) | by_row(ptx::ballot_sync(lost_lower)) << 1;
}
// Bits 4 r + 2 and 4 r + 3: the same of the warp's rows 64 further.
SIRDAR_DEVICE int lost_row(int bit) { return bit / 4 + 8 * (bit % 2) + 64 * (bit % 4 / 2); }

}  // namespace sirdar::sm90
