// What the CPU backward chooses for a problem. Results depend on isa, block_m and block_n only,
// which follow from the machine and the head dimensions; range_n says how the same sums are dealt
// out to threads.
#pragma once

#include <sirdar/device.hpp>

namespace sirdar::cpu {

struct BackwardConfig {
  Isa isa = Isa::scalar;
  int32_t block_m = 0;      // query rows per tile, a multiple of the panel width
  int32_t block_n = 0;      // key rows per block, a multiple of the panel width
  int32_t range_n = 0;      // key rows per item of work, a multiple of block_n
  int32_t num_threads = 1;  // slots of scratch memory
  bool operator==(const BackwardConfig&) const = default;
};

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
