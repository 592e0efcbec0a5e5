// Key blocks that a mask of the caller's hides are neither loaded nor multiplied, and where it
// shows all of one nothing is masked: a small kernel before the forward writes what it shows of
// each (params.h, CoverView), and producer and consumers walk by that. What rows see of a block
// that is seen in part is written there too, once for all heads that the mask is the same for.
#pragma once

#include "cuda/sm90/forward/modify.cuh"
#include "cuda/sm90/forward/work.cuh"
#include "ptx/memory.cuh"
#include "ptx/warp.cuh"

namespace sirdar::sm90 {

// The query block's place among those that the mask differs for.
SIRDAR_DEVICE long long cover_index(const CoverView& cover, int batch, int head, int block) {
  return batch * cover.stride_batch + head * cover.stride_head + block;
}
SIRDAR_DEVICE const CoverWord* cover_words(const ForwardParams& params, const WorkItem& item) {
  return params.cover.words +
         cover_index(params.cover, item.batch, item.head, item.block) * params.cover.num_words;
}

// Walks over the key blocks that something of is seen, from right to left.
struct CoverCursor {
  const CoverWord* words;
  int first;       // no block before this one
  int index = -1;  // of the word at hand
  uint32_t some = 0, all = 0;
  int tiles_before = 0;

  SIRDAR_DEVICE CoverCursor(const ForwardParams& params, const WorkItem& item)
      : words(cover_words(params, item)), first(item.first_block) {}

  // The rightmost such block up to `block`; none: one before `first`.
  SIRDAR_DEVICE int next(int block) {
    while (block >= first) {
      if (block / 32 != index) {
        index = block / 32;
        const ptx::Int4 word = ptx::load_written_int4(words + index);
        some = static_cast<uint32_t>(word.x);
        all = static_cast<uint32_t>(word.y);
        tiles_before = word.z;
      }
      const uint32_t left = some & (~0u >> (31 - block % 32));
      if (left != 0) return 32 * index + ptx::highest_bit(left);
      block = 32 * index - 1;
    }
    return block;
  }
  // Of the block that next() was asked for last, or returned.
  SIRDAR_DEVICE SeenBlock seen(const ForwardParams& params, const WorkItem& item, int block) const {
    const CoverView& cover = params.cover;
    const int bit = block % 32;
    if (all >> bit & 1) return {block, SeenBlock::kAll};
    const int rank =
        cover.is_by_key != 0 ? block : tiles_before + ptx::count_bits(some & ~all & ~(~0u << bit));
    if ((some >> bit & 1) == 0 || rank >= cover.num_tiles) return {block, SeenBlock::kLook};
    const long long query_block = cover_index(cover, item.batch, item.head, item.block);
    return {block, static_cast<int>(query_block * cover.num_tiles + rank)};
  }
};

// Leaves of an item's key blocks those from the first to the last of which something is seen; one
// hidden block if there is none. By a whole warp.
SIRDAR_DEVICE void tighten(const ForwardParams& params, int lane, WorkItem& item) {
  const CoverWord* words = cover_words(params, item);
  const int first = item.first_block, last = first + item.num_blocks - 1;
  int leftmost = -1, rightmost = -1;
  SIRDAR_NO_UNROLL
  for (int base = first / 32; base <= last / 32; base += 32) {
    const int i = base + lane;
    uint32_t some = i <= last / 32 ? ptx::load_written(&words[i].some) : 0;
    if (i == first / 32) some &= ~0u << (first % 32);
    if (i == last / 32) some &= ~0u >> (31 - last % 32);
    const uint32_t seen = ptx::ballot_sync(some != 0);  // in which lanes' words something is
    if (seen == 0) continue;
    const int left = ptx::lowest_bit(seen), right = ptx::highest_bit(seen);
    const int lowest = ptx::lowest_bit(ptx::shfl(some, left));
    if (leftmost < 0) leftmost = 32 * (base + left) + lowest;
    rightmost = 32 * (base + right) + ptx::highest_bit(ptx::shfl(some, right));
  }
  item.first_block = leftmost < 0 ? first : leftmost;
  item.num_blocks = leftmost < 0 ? 1 : rightmost - leftmost + 1;
}

struct CoverConfig {
  ForwardConfig forward;  // whose blocks are meant
  // Every pair is looked at, as where a tensor has one value for each. Otherwise what blocks show
  // is found by interval arithmetic, and the pairs of those that show part.
  bool looks_at_pairs;
  // For a kernel that walks query blocks (backward/walk.cuh): words alone, each by a thread block,
  // and of pairs that are looked at what keys are seen by: [list][key block][query
  // block][key][row].
  bool is_by_key = false;
};
constexpr int shared_bytes(const CoverConfig&) { return kCoverSharedBytes; }

// One thread block: what one query block sees, or some of it.
template <CoverConfig config, class Modification>
struct CoverBlock {
  static constexpr ForwardConfig kForward = config.forward;
  static constexpr int kM = block_m(kForward), kQueryRows = block_rows(kForward),
                       kN = kForward.block_n, kWords = kN / 32,
                       kWarps = cover_warps(config.looks_at_pairs, config.is_by_key);
  const ForwardParams& params;
  const Modification& modification;
  int batch, head, block;
  int warp, lane;
  Rows q, k;

  SIRDAR_DEVICE CoverBlock(const ForwardParams& p, const Modification& m, int list, int query_block,
                           int thread)
      : params(p),
        modification(m),
        batch(list / p.cover.num_heads),
        head(list % p.cover.num_heads),
        block(query_block),
        warp(ptx::uniform(thread / 32)),
        lane(thread % 32),
        q(rows_of<kForward>(p.cu_seqlens_q, p.seqused_q, p.seqlen_q, batch)),
        k(rows_of<kForward>(p.cu_seqlens_k, p.seqused_k, p.seqlen_k, batch)) {}

  SIRDAR_DEVICE int shift() const { return k.length - q.length; }
  SIRDAR_DEVICE int first_row() const { return block * kQueryRows; }
  SIRDAR_DEVICE int last_row() const { return ptx::min_of(first_row() + kQueryRows, q.length) - 1; }
  SIRDAR_DEVICE CoverWord* words() const {
    return params.cover.words +
           cover_index(params.cover, batch, head, block) * params.cover.num_words;
  }
  SIRDAR_DEVICE unsigned* tile(int rank) const {
    const long long index = cover_index(params.cover, batch, head, block) * params.cover.num_tiles;
    return params.cover.tiles + (index + rank) * seen_words(kForward);
  }
  // Whether the sequence's own bounds leave anything of a key block.
  SIRDAR_DEVICE bool is_reached(int key) const {
    if (first_row() >= q.length) return false;
    const KeyBounds<kForward> bounds(params, q.length, k.length);
    return key < bounds.hi(last_row()) && ptx::min_of(key + kN, k.length) > bounds.lo(first_row());
  }

  // What 32 tile rows see of a key block, row by row a lane's; a row and 32 keys at a time, so that
  // ids and masks are read line by line. Packed heads see the same.
  SIRDAR_DEVICE void look(int tile_row, int key, uint32_t (&seen)[kWords]) const {
    typename Modification::Key keys[kWords];
    SIRDAR_UNROLL
    for (int word = 0; word < kWords; ++word) {
      keys[word] = modification.begin_key(batch, head, key + 32 * word + lane);
    }
    const int row = query_row<kForward>(tile_row + lane);
    const auto own = modification.begin_row(batch, head, row, row + shift());
    SIRDAR_NO_UNROLL
    for (int first = 0; first < 32; first += 4) {
      SIRDAR_UNROLL
      for (int i = first; i < first + 4; ++i) {
        const auto of_row = from_lane(own, i);
        SIRDAR_UNROLL
        for (int word = 0; word < kWords; ++word) {
          const uint32_t bits = ptx::ballot_sync(modification.visible(of_row, keys[word]));
          if (i == lane) seen[word] = bits;
        }
      }
    }
  }
  // Of a tile row, whose bits the lane has, those that structured masks leave, as the threads of
  // the forward hold scores. By all lanes; row: in the tile.
  SIRDAR_DEVICE void store_by_lane(unsigned* tile, int row, int key,
                                   const uint32_t (&seen)[kWords]) const {
    const KeyBounds<kForward> bounds(params, q.length, k.length);
    const int query = query_row<kForward>(block * kM + row);
    const int lo = bounds.lo(query) - key, hi = bounds.hi(query) - key;
    uint32_t left[kWords];
    SIRDAR_UNROLL
    for (int word = 0; word < kWords; ++word) {
      left[word] = seen[word] & bits_from_to(lo - 32 * word, hi - 32 * word);
    }
    constexpr int kRowWords = seen_row_words(kN);
    uint32_t words[kRowWords];
    SIRDAR_UNROLL
    for (int i = 0; i < kRowWords; ++i) {
      if constexpr (kN <= 64) {
        words[i] = own_bits(left, 2 * i, 0) | own_bits(left, 2 * i + 1, 0) << 16;
      } else {
        words[i] = own_bits(left, i / (kRowWords / 4), i % (kRowWords / 4));
      }
    }
    SIRDAR_UNROLL
    for (int i = 0; i < kRowWords; ++i) tile[row * kRowWords + i] = words[i];
  }

  // Of 32 rows and keys: from a row's bits in a lane to a key's.
  SIRDAR_DEVICE static uint32_t turned(uint32_t bits, int lane) {
    uint32_t low = 0x0000ffffu;  // the bits whose place has not `distance`
    SIRDAR_UNROLL
    for (int distance = 16; distance > 0; distance /= 2) {
      const uint32_t other = ptx::shfl_xor(bits, distance);
      bits = (lane & distance) != 0 ? (bits & ~low) | (other >> distance & low)
                                    : (bits & low) | (other << distance & ~low);
      low ^= low << (distance / 2);
    }
    return bits;
  }
  // Of the tile rows from `row` on what a lane's keys are seen by, within the sequence's own
  // bounds.
  SIRDAR_DEVICE void store_by_key(int key, int row, const uint32_t (&seen)[kWords]) const {
    const KeyBounds<kForward> bounds(params, q.length, k.length);
    const long long list = static_cast<long long>(batch) * params.cover.num_heads + head;
    const long long index =
        (list * params.cover.num_tiles + key / kN) * params.num_blocks_m + block;
    unsigned* const bits = params.cover.tiles + index * (kN * kM / 32) + row / 32;
    SIRDAR_UNROLL
    for (int word = 0; word < kWords; ++word) {
      const int own = 32 * word + lane, first_row = block * kM + row;
      const uint32_t reached = bits_from_to(bounds.row_begin(key + own) - first_row,
                                            bounds.row_end(key + own) - first_row);
      const uint32_t rows = turned(seen[word], lane);  // by all lanes
      bits[own * (kM / 32)] = key + own < k.length ? rows & reached : 0;
    }
  }

  // Whether something of a key block may be visible, and whether all is: bits 0 and 1, by interval
  // arithmetic.
  template <class RowBounds>
  SIRDAR_DEVICE uint32_t bound(const RowBounds& rows, language::Box& box, int key) const {
    if (!is_reached(key)) return 0;
    box.k = {key, ptx::min_of(key + kN, k.length) - 1};
    const language::Truth truth = modification.visible_bounds(rows, box);
    return truth.may_be_true ? truth.may_be_false ? 1 : 3 : 0;
  }

  // What the warps find of key blocks is exchanged in shared memory, two rounds' apart.
  SIRDAR_DEVICE static uint32_t found(int round, int word) {
    return ptx::dynamic_shared() + (round % 2 * kCoverRound + word) * (32 * 4);
  }
  SIRDAR_DEVICE CoverWord gather(uint32_t from) const {
    const uint32_t own = ptx::load_shared(from + 4 * lane);
    CoverWord word{};
    word.some = ptx::ballot_sync((own & 1) != 0);
    word.all = ptx::ballot_sync((own & 2) != 0);
    return word;
  }
  // Of so many words from `first` on, at most a round's; by the whole block.
  SIRDAR_DEVICE void bound_words(int round, int first, int count) const {
    language::Box box{
        batch, head, {first_row(), last_row()}, {first_row() + shift(), last_row() + shift()}, {},
        lane,  32};
    if (first_row() < q.length) {
      const auto rows = modification.begin_row_bounds(box);
      SIRDAR_NO_UNROLL
      for (int i = warp; i < 32 * count; i += kWarps) {
        const uint32_t seen = bound(rows, box, (32 * first + i) * kN);
        if (lane == 0) ptx::store_shared(found(round, i / 32) + i % 32 * 4, seen);
      }
    } else {
      for (int i = warp; i < 32 * count; i += kWarps) {
        if (lane == 0) ptx::store_shared(found(round, i / 32) + i % 32 * 4, 0u);
      }
    }
    ptx::syncthreads();
  }

  // All of a query block's words. Of blocks that are seen in part a warp takes 32 rows at a time.
  SIRDAR_DEVICE void run_bounds() const {
    constexpr int kGroups = kM / 32, kPlaces = kWarps / kGroups;
    static_assert(kPlaces > 0);
    int rank = 0;  // of the next block that is seen in part
    SIRDAR_NO_UNROLL
    for (int round = 0; round * kCoverRound < params.cover.num_words; ++round) {
      const int first = round * kCoverRound;
      const int count = ptx::min_of(kCoverRound, params.cover.num_words - first);
      bound_words(round, first, count);
      SIRDAR_NO_UNROLL
      for (int i = 0; i < count; ++i) {
        CoverWord word = gather(found(round, i));
        word.tiles_before = rank;
        if (warp == 0 && lane == 0) words()[first + i] = word;
        for (uint32_t part = word.some & ~word.all; part != 0; part &= part - 1, ++rank) {
          if (rank >= params.cover.num_tiles || rank % kPlaces != warp / kGroups) continue;
          const int row = warp % kGroups * 32;
          const int key = (32 * (first + i) + ptx::lowest_bit(part)) * kN;
          uint32_t seen[kWords];
          look(block * kM + row, key, seen);
          store_by_lane(tile(rank), row + lane, key, seen);
        }
      }
    }
  }

  SIRDAR_DEVICE void run_word(int index) const {
    bound_words(0, index, 1);
    if (warp != 0) return;
    const CoverWord word = gather(found(0, 0));
    if (lane == 0) words()[index] = word;
  }

  // A quarter of a word: a key block a warp.
  SIRDAR_DEVICE void run_pairs(int quarter) const {
    static_assert(kWarps == 8);
    const int key_block = 8 * quarter + warp, key = key_block * kN;
    uint32_t valid[kWords];  // keys that there are
    SIRDAR_UNROLL
    for (int word = 0; word < kWords; ++word) {
      const int left = k.length - key - 32 * word;
      valid[word] = left >= 32 ? ~0u : left > 0 ? ~(~0u << left) : 0u;
    }
    bool some = false, all = true;
    if (is_reached(key)) {
      SIRDAR_NO_UNROLL
      for (int row = 0; row < kM; row += 32) {
        uint32_t seen[kWords];
        look(block * kM + row, key, seen);
        if constexpr (config.is_by_key) {
          store_by_key(key, row, seen);
        } else {
          store_by_lane(tile(key_block), row + lane, key, seen);
        }
        const bool counts = query_row<kForward>(block * kM + row + lane) < q.length;
        SIRDAR_UNROLL
        for (int word = 0; word < kWords; ++word) {
          some |= counts && (seen[word] & valid[word]) != 0;
          all &= !counts || (~seen[word] & valid[word]) == 0;
        }
      }
    }
    const bool is_seen = ptx::any_sync(some), is_all = is_seen && !ptx::any_sync(!all);
    if (lane < 4) {  // those of the other quarters are not there
      ptx::store_shared(found(0, 0) + (8 * lane + warp) * 4,
                        lane == 0 ? (is_seen ? 1u : 0u) + (is_all ? 2u : 0u) : 0u);
    }
    ptx::syncthreads();
    if (warp != 0) return;
    const CoverWord word = gather(found(0, 0));
    if (lane != 0) return;
    CoverWord& whole = words()[quarter / 4];
    reinterpret_cast<uint8_t*>(&whole.some)[quarter % 4] = static_cast<uint8_t>(word.some);
    reinterpret_cast<uint8_t*>(&whole.all)[quarter % 4] = static_cast<uint8_t>(word.all);
  }
};

template <CoverConfig config, class Modification>
SIRDAR_DEVICE void cover_keys(const ModifiedParams<Modification>& params) {
  ptx::griddepcontrol_launch_dependents();
  const int words = params.forward.cover.num_words;
  const int parts = config.looks_at_pairs ? 4 * words : config.is_by_key ? words : 1;
  const int blocks = params.forward.num_blocks_m, index = ptx::block_idx_x() / parts;
  const CoverBlock<config, Modification> block(params.forward, params.modification, index / blocks,
                                               index % blocks, ptx::thread_idx_x());
  if constexpr (config.looks_at_pairs) {
    block.run_pairs(ptx::block_idx_x() % parts);
  } else if constexpr (config.is_by_key) {
    block.run_word(ptx::block_idx_x() % parts);
  } else {
    block.run_bounds();
  }
}

}  // namespace sirdar::sm90
