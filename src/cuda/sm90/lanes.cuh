#pragma once

#include "ptx/warp.cuh"

namespace sirdar::sm90 {

// Bits of the numbers from begin to end - 1 among 0 to 31.
SIRDAR_DEVICE uint32_t bits_from_to(int begin, int end) {
  const uint32_t below = end <= 0 ? 0u : end >= 32 ? ~0u : ~(~0u << end);
  return begin >= 32 ? 0u : begin <= 0 ? below : below & (~0u << begin);
}

// The plain data that another lane has.
template <class T>
SIRDAR_DEVICE T from_lane(const T& own, int lane) {
  constexpr int kWords = (sizeof(T) + 3) / 4;
  uint32_t words[kWords] = {};
  memcpy(words, &own, sizeof(T));
  SIRDAR_UNROLL
  for (int i = 0; i < kWords; ++i) words[i] = ptx::shfl(words[i], lane);
  T other;
  memcpy(&other, words, sizeof(T));
  return other;
}

}  // namespace sirdar::sm90
