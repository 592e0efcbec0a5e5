// A weighted sum of rows in a warp's registers, its columns across the lanes.
#pragma once

#include "cuda/rows/backward/config.h"
#include "cuda/rows/forward/element.cuh"
#include "cuda/rows/warp.cuh"

namespace sirdar::rows {

template <Element kElement, int kColumns>
struct RowSum {
  using Stored = StoredOf<kElement>;
  static constexpr int kCount = kColumns / 32, kGroup = neighbours(kElement, kColumns);
  float sum[kCount];

  SIRDAR_DEVICE void clear() {
    SIRDAR_UNROLL
    for (int i = 0; i < kCount; ++i) sum[i] = 0;
  }

  // Adds the rows that the bits of `seen` tell: row_of(n) times the weight that lane n has. Others
  // may lie in memory that holds anything, and are not read.
  template <class RowOf>
  SIRDAR_DEVICE void add(uint32_t seen, float weight, int num_columns, bool reads_vectors, int lane,
                         const RowOf& row_of) {
    if (seen == ~0u && reads_vectors) {
      SIRDAR_NO_UNROLL
      for (int begin = 0; begin < 32; begin += 4) {
        SIRDAR_UNROLL
        for (int n = begin; n < begin + 4; ++n) {
          add_row<true>(row_of(n), from_lane(weight, n), num_columns, lane);
        }
      }
      return;
    }
    SIRDAR_NO_UNROLL
    while (seen != 0) {
      const int n = ptx::lowest_bit(seen);
      seen &= seen - 1;
      const float shared_weight = from_lane(weight, n);
      if (reads_vectors) {
        add_row<true>(row_of(n), shared_weight, num_columns, lane);
      } else {
        add_row<false>(row_of(n), shared_weight, num_columns, lane);
      }
    }
  }

  template <Element kTo>
  SIRDAR_DEVICE void store(StoredOf<kTo>* row, int num_columns, int lane) const {
    SIRDAR_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const int column = column_of(lane, i);
      if (column < num_columns) row[column] = Number<kTo>::stored(sum[i]);
    }
  }

 private:
  SIRDAR_DEVICE static int column_of(int lane, int i) {
    return i / kGroup * (32 * kGroup) + lane * kGroup + i % kGroup;
  }

  template <bool kReadsVectors>
  SIRDAR_DEVICE void add_row(const Stored* row, float weight, int num_columns, int lane) {
    SIRDAR_UNROLL
    for (int i = 0; i < kCount; i += kGroup) {
      const int column = column_of(lane, i);
      if constexpr (kReadsVectors && kGroup * element_bytes(kElement) >= 4) {
        if (column >= num_columns) continue;
        const auto packet = Packet<kElement, kGroup>::load(row + column);
        SIRDAR_UNROLL
        for (int n = 0; n < kGroup; ++n) {
          sum[i + n] = ptx::fma_of(weight, packet.value(n), sum[i + n]);
        }
      } else {
        SIRDAR_UNROLL
        for (int n = 0; n < kGroup; ++n) {
          if (column + n >= num_columns) continue;
          sum[i + n] = ptx::fma_of(weight, load_number<kElement>(row + column + n), sum[i + n]);
        }
      }
    }
  }
};

}  // namespace sirdar::rows
