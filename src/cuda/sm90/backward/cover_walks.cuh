// From what each query tile sees of key blocks, which forward/cover.cuh finds, to the tiles that
// each key block walks, and the key blocks that add to each tile.
#pragma once

#include "cuda/sm90/backward/walk.cuh"
#include "ptx/warp.cuh"

namespace sirdar::sm90 {

// The tiles first to first + 31 that the lengths and structured masks leave a key block, a bit
// each.
template <BackwardConfig config>
SIRDAR_DEVICE uint32_t reached_tiles(const BackwardParams& params, const Sequence& sequence,
                                     int index, int first) {
  KeyBlock block;
  block.sequence = sequence;
  block.index = index;
  block.first_key = index * block_keys(config);
  find_tiles<config>(params, block);
  const int begin = ptx::max_of(block.begin - first, 0), end = block.end - first;
  if (begin >= 32 || end <= begin || index >= sequence.num_blocks) return 0;
  return (end >= 32 ? ~0u : ~(~0u << end)) & ~0u << begin;
}

// A warp takes 32 query tiles of a list, and all key blocks.
template <WalkConfig config>
SIRDAR_DEVICE void cover_walks(const BackwardParams& params) {
  constexpr BackwardConfig kBackward = config.backward;
  const WalkView& walk = params.walk;
  const int lane = ptx::thread_idx_x() % 32;
  const int warp =
      ptx::block_idx_x() * (kWalkThreads / 32) + ptx::uniform(ptx::thread_idx_x() / 32);
  const int list = warp / walk.num_words, walk_word = warp - list * walk.num_words;
  if (list >= walk.cover.num_batches * walk.cover.num_heads) return;
  const Sequence sequence = sequence_of<kBackward>(params, list / walk.cover.num_heads);
  const int tile = 32 * walk_word + lane;
  const bool is_tile = tile < params.num_tiles;
  const long long row = static_cast<long long>(list) * params.num_tiles + tile;
  for (int word = 0; word < walk.cover.num_words; ++word) {
    ptx::Int4 seen{0, 0, 0, 0};
    const long long place = row * walk.cover.num_words + word;
    if (is_tile) seen = ptx::load_constant_int4(walk.cover.words + place);
    uint32_t adders = 0;
    WalkWord own{0, 0};
    SIRDAR_NO_UNROLL
    for (int bit = 0; bit < 32; ++bit) {
      const uint32_t reached =
          reached_tiles<kBackward>(params, sequence, 32 * word + bit, 32 * walk_word);
      const uint32_t some = ptx::ballot_sync((seen.x >> bit & 1) != 0) & reached;
      const uint32_t all = ptx::ballot_sync((seen.y >> bit & 1) != 0);
      adders |= (some >> lane & 1) << bit;
      if (bit == lane) own = {some, all};
    }
    if (is_tile) walk.adders[place] = adders;
    const int index = 32 * word + lane;
    if (index >= params.num_blocks_n) continue;
    const long long block = static_cast<long long>(list) * params.num_blocks_n + index;
    walk.walks[block * walk.num_words + walk_word] = own;
  }
}

}  // namespace sirdar::sm90
