// Which rows of accumulators a NaN or an infinity has reached, in one word.
#pragma once

#include "cuda/sm90/lost_rows.cuh"

namespace sirdar::sm90 {

// Of a warp's sixteen rows those that are not finite: bit 4 r is row r, bit 4 r + 1 row r + 8.
template <int kCount>
SIRDAR_DEVICE uint32_t find_lost(const float (&sums)[kCount]) {
  return find_lost(sums, [](uint32_t upper, uint32_t lower) { return upper | lower << 1; });
}
// Bits 4 r + 2 and 4 r + 3: the same of the warp's rows 64 further.
SIRDAR_DEVICE int lost_row(int bit) { return bit / 4 + 8 * (bit % 2) + 64 * (bit % 4 / 2); }
SIRDAR_DEVICE int lost_bit(int row) { return row % 8 * 4 + row / 8; }  // of the first sixteen

}  // namespace sirdar::sm90
