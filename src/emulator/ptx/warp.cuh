#pragma once

#include <cstring>

#include "ptx/base.cuh"

namespace sirdar::ptx {

inline uint32_t shfl_xor(uint32_t value, int lane_mask, Here here = Here::current()) {
  const Change change = machine().enter(Op::kShfl, here);
  if (change == Change::kLeftOut) return value;
  const int source =
      machine().fiber().lane ^ (change == Change::kOther ? lane_mask ^ 4 : lane_mask);
  return emulator::shfl(~0u, value, source);
}
inline float shfl_xor(float value, int lane_mask, Here here = Here::current()) {
  return __builtin_bit_cast(float, shfl_xor(__builtin_bit_cast(uint32_t, value), lane_mask, here));
}

inline uint32_t shfl(uint32_t value, int lane, Here here = Here::current()) {
  const Change change = machine().enter(Op::kShfl, here);
  if (change == Change::kLeftOut) return value;
  return emulator::shfl(~0u, value, change == Change::kOther ? lane ^ 4 : lane);
}

inline uint32_t ballot_sync(bool predicate, Here here = Here::current()) {
  const Change change = machine().enter(Op::kVote, here);
  return emulator::ballot(~0u, predicate) ^ (change == Change::kFlipped ? ~0u : 0u);
}
inline bool any_sync(bool predicate, Here here = Here::current()) {
  const Change change = machine().enter(Op::kVote, here);
  return (emulator::ballot(~0u, predicate) != 0) != (change == Change::kFlipped);
}

inline void nanosleep() {}

}  // namespace sirdar::ptx
