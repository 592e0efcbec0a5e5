// Accumulators of wgmma as a thread holds them: parts of two rows, r and r + 8 of its warp's
// sixteen; four lanes share a row.
#pragma once

#include "cuda/sm90/tile.h"
#include "ptx/all.cuh"

namespace sirdar::sm90 {

inline constexpr float kMinusInfinity = __builtin_bit_cast(float, 0xff800000u);
inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.69314718055994531f;

template <Element kElement>
inline constexpr ptx::MmaType kMmaType =
    kElement == Element::bf16 ? ptx::MmaType::bf16 : ptx::MmaType::f16;

// Of accumulator register i: which of the two rows, and the column besides the lane's own offset.
constexpr bool is_lower_row(int i) { return (i >> 1) & 1; }
constexpr int column_of(int i) { return 8 * (i / 4) + (i & 1); }

// Largest absolute value; NaN: either way.
template <int kCount>
SIRDAR_DEVICE float largest_of(const float (&scores)[kCount]) {
  float largest[4] = {0, 0, 0, 0};  // apart, since each waits for the one before
  SIRDAR_UNROLL
  for (int i = 0; i < kCount; ++i) {
    largest[i % 4] = ptx::max_of(largest[i % 4], ptx::absolute(scores[i]));
  }
  return ptx::max_of(ptx::max_of(largest[0], largest[1]), ptx::max_of(largest[2], largest[3]));
}

template <Element kElement>
SIRDAR_DEVICE uint32_t pack(float low, float high) {
  if constexpr (kElement == Element::bf16) return ptx::pack_bf16x2(low, high);
  return ptx::pack_f16x2(low, high);
}

struct FloatPair {
  float low, high;
};
template <Element kElement>
SIRDAR_DEVICE FloatPair unpack(uint32_t pair) {
  if constexpr (kElement == Element::bf16) {
    return {ptx::float_of(pair << 16), ptx::float_of(pair & 0xffff0000u)};
  }
  return {ptx::f16_to_float(static_cast<uint16_t>(pair & 0xffff)),
          ptx::f16_to_float(static_cast<uint16_t>(pair >> 16))};
}

// 16-bit results of one row in pairs: word g is columns 8 g + 2 (lane % 4) and the next.
struct RowWords {
  uint32_t g0, g1, g2, g3;
};

// Four lanes exchange their words so that each has 16 bytes: columns 8 (lane % 4) and on.
SIRDAR_DEVICE ptx::Int4 gather_row(int lane, RowWords words) {
  const bool odd = lane & 1, high = lane & 2;
  const uint32_t a = ptx::shfl_xor(odd ? words.g0 : words.g1, 1);
  const uint32_t b = ptx::shfl_xor(odd ? words.g2 : words.g3, 1);
  // Now groups 0/1 and 2/3 of this lane's parity, words of the even and the odd lane.
  const uint32_t low_even = odd ? a : words.g0, low_odd = odd ? words.g1 : a;
  const uint32_t high_even = odd ? b : words.g2, high_odd = odd ? words.g3 : b;
  const uint32_t even = ptx::shfl_xor(high ? low_even : high_even, 2);
  const uint32_t uneven = ptx::shfl_xor(high ? low_odd : high_odd, 2);
  const uint32_t x = high ? even : low_even, y = high ? uneven : low_odd;
  const uint32_t z = high ? high_even : even, w = high ? high_odd : uneven;
  return {static_cast<int>(x), static_cast<int>(y), static_cast<int>(z), static_cast<int>(w)};
}

}  // namespace sirdar::sm90
