// What the CPU backward chooses for a problem. Results depend on isa, block_m and block_n only,
// which follow from the machine and the head dimensions; range_n says how the same sums are dealt
// out to threads.
#pragma once

#include <sirdar/device.hpp>

#include <algorithm>
#include <bit>

namespace sirdar::cpu {

struct BackwardConfig {
  Isa isa = Isa::scalar;
  int32_t block_m = 0;      // query rows per tile, a multiple of the panel width
  int32_t block_n = 0;      // key rows per block, a multiple of the panel width
  int32_t range_n = 0;      // key rows per item of work, a multiple of keys_per_sum()
  int32_t num_threads = 1;  // slots of scratch memory
  bool operator==(const BackwardConfig&) const = default;
};

// Keys of a sequence whose terms of dq are summed by themselves: a range of keys ends where such a
// run does, and need not know the sum of the keys before until it has its own. An eighth of the
// sequence or less, or more ranges than that would wait for each other.
constexpr int64_t keys_per_sum(int64_t num_keys, int64_t block_n) {
  constexpr uint64_t kMostBlocks = 8;
  const auto eighth = static_cast<uint64_t>(num_keys / block_n / 8);
  return static_cast<int64_t>(std::clamp<uint64_t>(std::bit_floor(eighth), 1, kMostBlocks)) *
         block_n;
}

template <class C, class Visit>
constexpr void fields(C& config, Visit visit) requires requires {
  config.range_n;
}
{
  visit("isa", config.isa);
  visit("block_m", config.block_m);
  visit("block_n", config.block_n);
  visit("range_n", config.range_n);
  visit("num_threads", config.num_threads);
}

}  // namespace sirdar::cpu
