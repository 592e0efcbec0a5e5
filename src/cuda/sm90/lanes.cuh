#pragma once

#include "ptx/warp.cuh"

namespace sirdar::sm90 {

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
