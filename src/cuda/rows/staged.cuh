// A row in shared memory as fp32, which rows in global memory are multiplied with: each lane of a
// warp has another one of those.
#pragma once

#include "cuda/rows/forward/element.cuh"
#include "ptx/named_barrier.cuh"

namespace sirdar::rows {

struct StagedRow {
  uint32_t address;  // shared

  // By a whole warp; padded with zeros to `num_padded` columns, a multiple of 32.
  template <Element kElement>
  SIRDAR_DEVICE void load(const StoredOf<kElement>* row, int num_columns, int num_padded,
                          int lane) const {
    for (int d = 4 * lane; d < num_padded; d += 128) {
      uint32_t words[4];
      SIRDAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        words[i] = ptx::bits_of(d + i < num_columns ? load_number<kElement>(row + d + i) : 0.0f);
      }
      ptx::store_shared(address + 4 * static_cast<uint32_t>(d),
                        {static_cast<int>(words[0]), static_cast<int>(words[1]),
                         static_cast<int>(words[2]), static_cast<int>(words[3])});
    }
    ptx::syncwarp();
  }

  // `reads_vectors`: the other row begins at a multiple of 16 bytes.
  template <Element kElement>
  SIRDAR_DEVICE float dot(const StoredOf<kElement>* other, int num_columns,
                          bool reads_vectors) const {
    constexpr int kChunk = 16 / element_bytes(kElement);
    float sums[4] = {0, 0, 0, 0};
    int d = 0;
    if (reads_vectors) {
      SIRDAR_NO_UNROLL
      for (; d + 4 * kChunk <= num_columns; d += 4 * kChunk)
        add_packets<kElement, 4>(other, d, sums);
      SIRDAR_NO_UNROLL
      for (; d + kChunk <= num_columns; d += kChunk) add_packets<kElement, 1>(other, d, sums);
    }
    SIRDAR_NO_UNROLL
    for (; d < num_columns; d += kChunk) {
      float values[kChunk];
      SIRDAR_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        values[i] = d + i < num_columns ? load_number<kElement>(other + d + i) : 0.0f;
      }
      add_products(values, d, sums);
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

 private:
  template <int kChunk>
  SIRDAR_DEVICE void add_products(const float (&other)[kChunk], int d, float (&sums)[4]) const {
    SIRDAR_UNROLL
    for (int i = 0; i < kChunk; i += 4) {
      const ptx::Int4 own = ptx::load_shared_int4(address + 4 * static_cast<uint32_t>(d + i));
      const int words[4] = {own.x, own.y, own.z, own.w};
      SIRDAR_UNROLL
      for (int n = 0; n < 4; ++n) {
        sums[n] =
            ptx::fma_of(ptx::float_of(static_cast<uint32_t>(words[n])), other[i + n], sums[n]);
      }
    }
  }

  // kPackets times 16 bytes, loaded before the first of them is used.
  template <Element kElement, int kPackets>
  SIRDAR_DEVICE void add_packets(const StoredOf<kElement>* other, int d, float (&sums)[4]) const {
    constexpr int kChunk = 16 / element_bytes(kElement);
    Packet<kElement, kChunk> packets[kPackets];
    SIRDAR_UNROLL
    for (int n = 0; n < kPackets; ++n)
      packets[n] = Packet<kElement, kChunk>::load(other + d + n * kChunk);
    SIRDAR_UNROLL
    for (int n = 0; n < kPackets; ++n) {
      float values[kChunk];
      SIRDAR_UNROLL
      for (int i = 0; i < kChunk; ++i) values[i] = packets[n].value(i);
      add_products(values, d + n * kChunk, sums);
    }
  }
};

}  // namespace sirdar::rows
