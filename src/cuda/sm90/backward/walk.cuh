// The query tiles of a key block, in the order in which every warp walks them; and in which order
// key blocks add to a tile. Masks that are expressions, ids or tensors leave tiles out: which, is
// known before (cover_walks.cuh).
#pragma once

#include "cuda/sm90/backward/work.cuh"
#include "ptx/memory.cuh"

namespace sirdar::sm90 {

SIRDAR_DEVICE long long list_of(const WalkView& walk, int batch, int head) {
  return batch * walk.list_of_batch + head * walk.list_of_head;
}
// Of a query tile, a bit a key block that adds to it.
SIRDAR_DEVICE const unsigned* adders_of(const BackwardParams& params, int batch, int head,
                                        int tile) {
  const WalkView& walk = params.walk;
  return walk.adders +
         (list_of(walk, batch, head) * params.num_tiles + tile) * walk.cover.num_words;
}

// The tiles of which a key block sees something, head by head.
struct CoveredWalk {
  const BackwardParams& params;
  const KeyBlock& block;
  int tile = 0, head = 0;  // head within the group
  int word;
  uint32_t some = 0, all = 0;  // of the word; some: from this tile on

  SIRDAR_DEVICE CoveredWalk(const KeyBlock& of, const BackwardParams& p)
      : params(p), block(of), word(of.begin / 32 - 1) {
    if (of.end <= of.begin) head = params.group_size;
    settle();
  }

  SIRDAR_DEVICE bool is_done() const { return head >= params.group_size; }
  SIRDAR_DEVICE void advance() {
    some &= some - 1;
    settle();
  }
  SIRDAR_DEVICE bool sees_all() const { return (all >> (tile % 32) & 1) != 0; }

 private:
  SIRDAR_DEVICE void settle() {
    while (some == 0 && !is_done()) {
      if (32 * ++word >= block.end) {
        word = block.begin / 32 - 1;
        ++head;
        continue;
      }
      const WalkView& walk = params.walk;
      const long long list = list_of(walk, block.batch, block.head_kv * params.group_size + head);
      const WalkWord* const words =
          walk.walks + (list * params.num_blocks_n + block.index) * walk.num_words;
      some = ptx::load_constant(&words[word].some);
      all = ptx::load_constant(&words[word].all);
    }
    if (some != 0) tile = 32 * word + ptx::lowest_bit(some);
  }
};

template <bool kIsCovered>
struct WalkChoice {
  using Type = TileWalk;
};
template <>
struct WalkChoice<true> {
  using Type = CoveredWalk;
};
template <BackwardConfig config>
using Walk = typename WalkChoice<config.has_mask_mod>::Type;

// Of 32 key blocks those that add to the same sum of a tile as `index`.
template <BackwardConfig config>
SIRDAR_DEVICE uint32_t sharers(int index) {
  constexpr uint32_t kEvery = config.num_sums == 1   ? ~0u
                              : config.num_sums == 2 ? 0x55555555u
                                                     : 0x11111111u;
  return kEvery << (index % config.num_sums);
}

// How many key blocks add to the same sum of a query tile before this one: masks let those further
// right go first.
template <BackwardConfig config>
SIRDAR_DEVICE int turn_of(const BackwardParams& params, const KeyBlock& block,
                          const Walk<config>& walk) {
  if constexpr (!config.has_mask_mod) {
    return turn_of<config>(params, block, walk.tile);
  } else {
    const unsigned* const adders =
        adders_of(params, block.batch, block.head_kv * params.group_size + walk.head, walk.tile);
    const uint32_t same = sharers<config>(block.index);
    const int own = block.index / 32;
    const uint32_t right = same & ~1u << (block.index % 32);
    int turn = ptx::count_bits(ptx::load_constant(adders + own) & right);
    for (int word = own + 1; word < params.walk.cover.num_words; ++word) {
      turn += ptx::count_bits(ptx::load_constant(adders + word) & same);
    }
    return turn;
  }
}

// Whether any key block adds to a sum of a tile.
template <BackwardConfig config>
SIRDAR_DEVICE bool is_added_to(const BackwardParams& params, int batch, int head, int tile,
                               int sum) {
  const unsigned* const adders = adders_of(params, batch, head, tile);
  for (int word = 0; word < params.walk.cover.num_words; ++word) {
    if ((ptx::load_constant(adders + word) & sharers<config>(sum)) != 0) return true;
  }
  return false;
}

}  // namespace sirdar::sm90
