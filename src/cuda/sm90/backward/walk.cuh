// The query tiles of a key block, in the order in which every warp walks them; and in which order
// key blocks add to a tile. Masks that are expressions, ids or tensors leave tiles out: which, is
// known before (cover_walks.cuh).
#pragma once

#include "cuda/sm90/backward/work.cuh"
#include "ptx/memory.cuh"

namespace sirdar::sm90 {

// What query tiles see: of 64 keys a bit each.
SIRDAR_DEVICE const CoverWord* seen_by(const BackwardParams& params, int batch, int head,
                                       int tile) {
  const WalkView& walk = params.walk;
  return walk.cover.words +
         (list_of(walk, batch, head) * params.num_tiles + tile) * walk.cover.num_words;
}

// What halves of a key block are told of a tile: how they see it, or the number of its bits
// (WalkView::tiles).
struct Shown {
  static constexpr int kNothing = -3, kLook = -2, kAll = -1;
};

// Of a head of the group.
SIRDAR_DEVICE const WalkWord* walk_words(const BackwardParams& params, const KeyBlock& block,
                                         int head) {
  const WalkView& walk = params.walk;
  const long long list = list_of(walk, block.batch, block.head_kv * params.group_size + head);
  return span_of(params, list, block.index) + 1;
}

// The tiles of which a key block sees something, head by head.
template <BackwardConfig config>
struct CoveredWalk {
  static constexpr int kHalves = block_keys(config) / 64;
  const BackwardParams& params;
  const KeyBlock& block;
  int tile = 0, head = 0;  // head within the group
  int word;
  uint32_t left = 0;                                // of the word, from this tile on
  uint32_t seen[kHalves] = {}, part[kHalves] = {};  // of the word what halves see, and in part
  int rank[kHalves] = {};  // of this tile among those of the head that a half sees in part

  SIRDAR_DEVICE CoveredWalk(const KeyBlock& of, const BackwardParams& p)
      : params(p), block(of), word(before_first()) {
    if (of.end <= of.begin) head = params.group_size;
    settle();
  }

  SIRDAR_DEVICE bool is_done() const { return head >= params.group_size; }
  SIRDAR_DEVICE void advance() {
    SIRDAR_UNROLL
    for (int half = 0; half < kHalves; ++half) rank[half] += part[half] >> (tile % 32) & 1;
    left ^= 1u << (tile % 32);
    settle();
  }
  SIRDAR_DEVICE bool is_seen(int half) const { return (seen[half] >> (tile % 32) & 1) != 0; }

  // What a half's warps are told of the tile.
  SIRDAR_DEVICE int shown(int half) const {
    if (!is_seen(half)) return Shown::kNothing;
    if ((part[half] >> (tile % 32) & 1) == 0) return Shown::kAll;
    const WalkView& walk = params.walk;
    const int place = walk.cover.is_by_key != 0 ? tile : rank_in_order(half);
    if (place >= walk.num_tiles) return Shown::kLook;
    const long long list = list_of(walk, block.batch, block.head_kv * params.group_size + head);
    return (static_cast<int>(list) * walk.num_halves + block.index * kHalves + half) *
               walk.num_tiles +
           place;
  }

 private:
  SIRDAR_DEVICE bool is_reversed() const { return config.mirrors_tail && block.is_reversed; }
  SIRDAR_DEVICE int before_first() const {
    return is_reversed() ? (block.end + 31) / 32 : block.begin / 32 - 1;
  }
  // Bits of tiles are kept from the first on, whichever way they are walked: then what comes later
  // is counted.
  SIRDAR_DEVICE int rank_in_order(int half) const {
    if (!is_reversed()) return rank[half];
    int count = ptx::count_bits(part[half] & ptx::lowest_bits(tile % 32));
    for (int i = block.begin / 32; i < word; ++i) {
      const ptx::Int4 found = ptx::load_written_int4(walk_words(params, block, head) + i);
      const int here = half == 0 ? found.x & ~found.z : found.y & ~found.w;
      count += ptx::count_bits(static_cast<uint32_t>(here));
    }
    return count;
  }
  SIRDAR_DEVICE void settle() {
    while (left == 0 && !is_done()) {
      word += is_reversed() ? -1 : 1;
      if (is_reversed() ? word < block.begin / 32 : 32 * word >= block.end) {
        word = before_first();
        ++head;
        SIRDAR_UNROLL
        for (int& one : rank) one = 0;
        continue;
      }
      const ptx::Int4 found = ptx::load_written_int4(walk_words(params, block, head) + word);
      const int some[2] = {found.x, found.y}, all[2] = {found.z, found.w};
      SIRDAR_UNROLL
      for (int half = 0; half < kHalves; ++half) {
        seen[half] = static_cast<uint32_t>(some[half]);
        part[half] = static_cast<uint32_t>(some[half] & ~all[half]);
        left |= seen[half];
      }
    }
    if (left == 0) return;
    tile = 32 * word + (is_reversed() ? ptx::highest_bit(left) : ptx::lowest_bit(left));
  }
};

// The same walk as the warpgroups of dK and dV hear of it, tile by tile beside Q: what they would
// keep of it between tiles has no registers.
struct ToldWalk {
  int left;           // tiles, this one too
  uint32_t told = 0;  // where this tile is described: its number, the head, what halves see
  int shown = 0;

  SIRDAR_DEVICE explicit ToldWalk(int tiles) : left(tiles) {}
  SIRDAR_DEVICE bool is_done() const { return left == 0; }
  SIRDAR_DEVICE void advance() { --left; }
  // Once it is there.
  SIRDAR_DEVICE void hear(uint32_t description, int half) {
    told = description;
    shown = static_cast<int>(ptx::load_shared(told + 8 + 4 * half));
  }
};
SIRDAR_DEVICE int tile_of(const ToldWalk& walk) {
  return static_cast<int>(ptx::load_shared(walk.told));
}
SIRDAR_DEVICE int head_of(const ToldWalk& walk) {
  return static_cast<int>(ptx::load_shared(walk.told + 4));
}
SIRDAR_DEVICE int tile_of(const TileWalk& walk) { return walk.tile; }
SIRDAR_DEVICE int head_of(const TileWalk& walk) { return walk.head; }

template <BackwardConfig config, bool kIsCovered>
struct WalkChoice {
  using Type = TileWalk;
  using Told = TileWalk;
};
template <BackwardConfig config>
struct WalkChoice<config, true> {
  using Type = CoveredWalk<config>;
  using Told = ToldWalk;
};
template <BackwardConfig config>
using Walk = typename WalkChoice<config, config.has_mask_mod>::Type;
template <BackwardConfig config>
using KeyWalk = typename WalkChoice<config, config.has_mask_mod>::Told;  // of dK and dV

// Key blocks as bits of the words that say what query tiles see.
template <BackwardConfig config>
struct Adders {
  static constexpr int kHalves = block_keys(config) / 64, kBlocks = 32 / kHalves;  // of a word

  // Those of a word, a bit a key block.
  SIRDAR_DEVICE static uint32_t load(const CoverWord* word) {
    const uint32_t some = ptx::load_written(&word->some);
    return kHalves == 1 ? some : (some | some >> 1) & 0x55555555u;
  }
  // Of any word those that add to the same sum of a tile as `index`.
  SIRDAR_DEVICE static uint32_t sharers(int index) {
    constexpr int kApart = kHalves * config.num_sums;
    constexpr uint32_t kEvery = kApart == 1   ? ~0u
                                : kApart == 2 ? 0x55555555u
                                : kApart == 4 ? 0x11111111u
                                              : 0x01010101u;
    return kEvery << (kHalves * (index % config.num_sums));
  }
};

// How many key blocks add to the same sum of a query tile before this one: masks let those further
// right go first, or further left where walks are reversed.
template <BackwardConfig config>
SIRDAR_DEVICE int turn_of(const BackwardParams& params, const KeyBlock& block,
                          const Walk<config>& walk) {
  if constexpr (!config.has_mask_mod) {
    return turn_of<config>(params, block, walk.tile);
  } else {
    using Own = Adders<config>;
    const CoverWord* const words =
        seen_by(params, block.batch, block.head_kv * params.group_size + walk.head, walk.tile);
    const uint32_t same = Own::sharers(block.index);
    const int own = block.index / Own::kBlocks;
    const int bit = Own::kHalves * (block.index % Own::kBlocks);
    const bool is_reversed = config.mirrors_tail && block.is_reversed;
    const uint32_t before = is_reversed ? ptx::lowest_bits(bit) : ~1u << bit;
    int turn = ptx::count_bits(Own::load(words + own) & same & before);
    const int begin = is_reversed ? 0 : own + 1;
    const int end = is_reversed ? own : params.walk.cover.num_words;
    for (int word = begin; word < end; ++word) {
      turn += ptx::count_bits(Own::load(words + word) & same);
    }
    return turn;
  }
}

// How many key blocks add to a sum of a tile.
template <BackwardConfig config>
SIRDAR_DEVICE int count_adders(const BackwardParams& params, int batch, int head, int tile,
                               int sum) {
  int count = 0;
  const CoverWord* const words = seen_by(params, batch, head, tile);
  for (int word = 0; word < params.walk.cover.num_words; ++word) {
    count += ptx::count_bits(Adders<config>::load(words + word) & Adders<config>::sharers(sum));
  }
  return count;
}

}  // namespace sirdar::sm90
