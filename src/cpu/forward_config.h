// What the CPU forward chooses for a problem. Results depend on isa, block_n and split_n only;
// these follow from the machine and the head dimensions, never from threads or from the rest of a
// batch.
#pragma once

#include <sirdar/device.hpp>

namespace sirdar::cpu {

struct ForwardConfig {
  Isa isa = Isa::scalar;
  int32_t block_m = 0;      // query rows per tile, a multiple of the panel width
  int32_t block_n = 0;      // key rows per block, a multiple of 8
  int32_t group_n = 1;      // blocks of keys that are packed together
  int32_t split_n = 0;      // fewest keys in a segment that another thread may take, in blocks
  int32_t num_threads = 1;  // slots of scratch memory
  bool operator==(const ForwardConfig&) const = default;
};

// With so many tiles every thread has its share, even where a causal mask makes some of them long:
// fewer make tiles smaller, or split their keys. Changes who computes what, not the bits.
constexpr int64_t enough_tiles(int num_threads) {
  return num_threads == 1 ? 1 : 4 * int64_t{num_threads};
}

// ... and the last round of tiles leaves threads idle for at most an eighth of the time.
constexpr bool shared_evenly(int64_t tiles, int num_threads) {
  const int64_t rounds = (tiles + num_threads - 1) / num_threads;
  return tiles >= enough_tiles(num_threads) && 8 * rounds * num_threads <= 9 * tiles;
}

template <class C, class Visit>
constexpr void fields(C& config, Visit visit) {
  visit("isa", config.isa);
  visit("block_m", config.block_m);
  visit("block_n", config.block_n);
  visit("group_n", config.group_n);
  visit("split_n", config.split_n);
  visit("num_threads", config.num_threads);
}

}  // namespace sirdar::cpu
