// Key blocks that a mask of the caller's hides are neither loaded nor multiplied, and where it
// shows all of one nothing is masked: a small kernel before the forward writes what it shows of
// each (params.h, CoverView), and producer and consumers walk by that. What rows see of a block
// that is seen in part is written there too, once for all heads that the mask is the same for.
#pragma once

#include "cuda/sm90/document_tiles.cuh"
#include "cuda/sm90/forward/modify.cuh"
#include "cuda/sm90/forward/work.cuh"
#include "ptx/memory.cuh"
#include "ptx/warp.cuh"

namespace sirdar::sm90 {

// The query block's place among those that the mask differs for.
SIRDAR_DEVICE long long cover_index(const CoverView& cover, int batch, int head, int block) {
  return batch * cover.stride_batch + head * cover.stride_head + block;
}
// Its words; before them, where tiles follow documents, stands what an item is made of:
//   first row, end of the rows, first key (WorkItem); whether another tile begins in the window
//   the first key block that is seen, and how many from there to the last
template <ForwardConfig config>
SIRDAR_DEVICE CoverWord* cover_words(const ForwardParams& params, int batch, int head, int block) {
  constexpr int kRecords = tile_records(config);
  return params.cover.words +
         cover_index(params.cover, batch, head, block) * (params.cover.num_words + kRecords) +
         kRecords;
}
template <ForwardConfig config>
SIRDAR_DEVICE const CoverWord* cover_words(const ForwardParams& params, const WorkItem& item) {
  return cover_words<config>(params, item.batch, item.head, item.block);
}

// The item of a ticket's first tile or second, where tiles follow documents; by a whole warp. One
// wait for memory: what is read next of the words comes with it into L1.
template <ForwardConfig config>
SIRDAR_DEVICE WorkItem tile_of(const ForwardParams& params, int lane, int ticket, int place) {
  WorkItem item;
  int window, batch_head;
  place_of<config>(params, ticket, window, batch_head);
  item.block = 2 * window + place;
  item.batch = params.by_heads.quotient(batch_head);
  item.head = batch_head - item.batch * params.num_heads;
  item.q_begin = 0;
  item.seqlen_q = params.seqlen_q;
  item.seqlen_k = params.seqlen_k;
  const ptx::Int4 own =
      ptx::load_constant_int4(cover_words<config>(params, item) - tile_records(config) + lane % 8);
  const auto from = [](int value, int owner) {
    return static_cast<int>(ptx::shfl(static_cast<uint32_t>(value), owner));
  };
  item.first_row = from(own.x, 0);
  item.end_row = from(own.y, 0);
  item.first_key = from(own.z, 0);
  item.first_block = from(own.x, 1);
  item.num_blocks = from(own.y, 1);
  return item;
}

// Walks over the key blocks that something of is seen, from right to left.
template <ForwardConfig config>
struct CoverCursor {
  const CoverWord* words;
  int first;       // no block before this one
  int index = -1;  // of the word at hand
  uint32_t some = 0, all = 0;
  int tiles_before = 0;

  SIRDAR_DEVICE CoverCursor(const ForwardParams& params, const WorkItem& item)
      : words(cover_words<config>(params, item)), first(item.first_block) {}

  // Whether another tile begins behind the item's in its window.
  SIRDAR_DEVICE bool has_second() const {
    return ptx::load_constant(&words[-tile_records(config)].unused) != 0;
  }

  // The rightmost such block up to `block`; none: one before `first`.
  SIRDAR_DEVICE int next(int block) {
    while (block >= first) {
      if (block / 32 != index) {
        index = block / 32;
        const ptx::Int4 word = ptx::load_constant_int4(words + index);
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
template <ForwardConfig config>
SIRDAR_DEVICE void tighten(const ForwardParams& params, int lane, WorkItem& item) {
  const CoverWord* words = cover_words<config>(params, item);
  const int first = item.first_block, last = first + item.num_blocks - 1;
  uint32_t hidden_left = ~0u, shown_right = 0;  // the least, and the largest plus 1
  SIRDAR_NO_UNROLL
  for (int i = first / 32 + lane; i <= last / 32; i += 32) {
    uint32_t some = ptx::load_constant(&words[i].some);
    if (i == first / 32) some &= ~0u << (first % 32);
    if (i == last / 32) some &= ~0u >> (31 - last % 32);
    if (some == 0) continue;
    const uint32_t lowest = static_cast<uint32_t>(32 * i + ptx::lowest_bit(some));
    hidden_left = lowest < hidden_left ? lowest : hidden_left;
    shown_right = static_cast<uint32_t>(32 * i + ptx::highest_bit(some) + 1);
  }
  ptx::syncwarp();
  SIRDAR_NO_UNROLL
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t left = ptx::shfl_xor(hidden_left, distance);
    const uint32_t right = ptx::shfl_xor(shown_right, distance);
    hidden_left = left < hidden_left ? left : hidden_left;
    shown_right = right > shown_right ? right : shown_right;
  }
  const bool is_seen = shown_right > 0;
  item.first_block = is_seen ? static_cast<int>(hidden_left) : first;
  item.num_blocks = is_seen ? static_cast<int>(shown_right - hidden_left) : 1;
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
constexpr int shared_bytes(const CoverConfig& c) {
  return cover_shared_bytes(c.forward.follows_documents);
}

// One thread block: what one query block sees, or some of it.
template <CoverConfig config, class Modification>
struct CoverBlock {
  static constexpr ForwardConfig kForward = config.forward;
  static constexpr int kM = block_m(kForward), kQueryRows = block_rows(kForward),
                       kN = kForward.block_n, kWords = kN / 32,
                       kWarps = cover_warps(config.looks_at_pairs, config.is_by_key,
                                            kForward.follows_documents);
  const ForwardParams& params;
  const Modification& modification;
  int batch, head, block;
  int warp, lane;
  Rows q, k;
  WorkItem tile_rows;  // with follows_documents: first_row, end_row, first_key

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
        k(rows_of<kForward>(p.cu_seqlens_k, p.seqused_k, p.seqlen_k, batch)) {
    if constexpr (kForward.follows_documents) place_tile();
  }

  // Finds the tile's rows and where its key blocks begin, and writes both down.
  SIRDAR_DEVICE void place_tile() {
    const DocumentSearch<kQueryRows, kWarps> search{ptx::dynamic_shared() + kCoverSharedBytes, warp,
                                                    lane};
    const auto query_id = [&](int row) { return modification.query_document(batch, row); };
    const auto key_id = [&](int key) { return modification.key_document(batch, key); };
    const DocumentTile found = search.find(query_id, q.length, block / 2, block % 2);
    tile_rows.first_row = found.begin;
    tile_rows.end_row = found.end;
    tile_rows.first_key = 0;
    if (found.begin < found.end) {
      const KeyBounds<kForward> bounds(params, q.length, k.length);
      const int first =
          search.first_with(key_id, query_id(found.begin), k.length, found.document + shift());
      const int rest = ptx::max_of(first, bounds.lo(found.begin)) % kN;
      if (rest > 0) tile_rows.first_key = rest - kN;
    }
    if (warp == 0 && lane == 0) {
      words()[-2] = {static_cast<unsigned>(found.begin), static_cast<unsigned>(found.end),
                     tile_rows.first_key, found.has_second ? 1 : 0};
      if (!has_rows()) words()[-1] = {0, 0, 0, 0};
    }
  }

  SIRDAR_DEVICE int shift() const { return k.length - q.length; }
  SIRDAR_DEVICE int first_row() const {
    if constexpr (kForward.follows_documents) return tile_rows.first_row;
    return block * kQueryRows;
  }
  SIRDAR_DEVICE int last_row() const {
    if constexpr (kForward.follows_documents) return tile_rows.end_row - 1;
    return ptx::min_of(first_row() + kQueryRows, q.length) - 1;
  }
  SIRDAR_DEVICE bool has_rows() const {
    if constexpr (kForward.follows_documents) return first_row() <= last_row();
    return first_row() < q.length;
  }
  SIRDAR_DEVICE int first_tile_row() const {
    if constexpr (kForward.follows_documents) return tile_rows.first_row;
    return block * kM;
  }
  // The query row of a tile row. Tile rows behind a tile that ends early see what its last row
  // does: they have a maximum like others, and are not stored.
  SIRDAR_DEVICE int query_of(int tile_row) const {
    if constexpr (kForward.follows_documents) return ptx::min_of(tile_row, last_row());
    return query_row<kForward>(tile_row);
  }
  SIRDAR_DEVICE int first_key(int key_block) const {
    return key_of<kForward>(tile_rows, key_block);
  }
  SIRDAR_DEVICE CoverWord* words() const {
    return cover_words<kForward>(params, batch, head, block);
  }
  SIRDAR_DEVICE unsigned* tile(int rank) const {
    const long long index = cover_index(params.cover, batch, head, block) * params.cover.num_tiles;
    return params.cover.tiles + (index + rank) * seen_words(kForward);
  }
  // Whether the sequence's own bounds leave anything of a key block.
  SIRDAR_DEVICE bool is_reached(int key) const {
    if (!has_rows()) return false;
    const KeyBounds<kForward> bounds(params, q.length, k.length);
    const int first = kForward.follows_documents ? ptx::max_of(key, 0) : key;
    return first < bounds.hi(last_row()) &&
           ptx::min_of(key + kN, k.length) > bounds.lo(first_row());
  }

  // What 32 tile rows see of a key block, row by row a lane's; a row and 32 keys at a time, so that
  // ids and masks are read line by line. Packed heads see the same.
  SIRDAR_DEVICE void look(int tile_row, int key, uint32_t (&seen)[kWords]) const {
    typename Modification::Key keys[kWords];
    SIRDAR_UNROLL
    for (int word = 0; word < kWords; ++word) {
      keys[word] = modification.begin_key(batch, head, key + 32 * word + lane);
    }
    const int row = query_of(tile_row + lane);
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
    const int query = query_of(first_tile_row() + row);
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
    if constexpr (kForward.follows_documents) {
      // Of what bounds hide the forward knows by itself.
      const KeyBounds<kForward> own(params, q.length, k.length);
      box.k = {ptx::max_of(key, own.lo(first_row())),
               ptx::min_of(key + kN, own.hi(last_row())) - 1};
    }
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
    if (has_rows()) {
      const auto rows = modification.begin_row_bounds(box);
      SIRDAR_NO_UNROLL
      for (int i = warp; i < 32 * count; i += kWarps) {
        const uint32_t seen = bound(rows, box, first_key(32 * first + i));
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
    int rank = 0;                      // of the next block that is seen in part
    int leftmost = -1, rightmost = 0;  // of those that something of is seen
    SIRDAR_NO_UNROLL
    for (int round = 0; round * kCoverRound < params.cover.num_words; ++round) {
      const int first = round * kCoverRound;
      const int count = ptx::min_of(kCoverRound, params.cover.num_words - first);
      bound_words(round, first, count);
      SIRDAR_NO_UNROLL
      for (int i = 0; i < count; ++i) {
        CoverWord word = gather(found(round, i));
        word.tiles_before = rank;
        if (kForward.follows_documents && word.some != 0) {
          const int left = 32 * (first + i) + ptx::lowest_bit(word.some);
          leftmost = leftmost < 0 ? left : leftmost;
          rightmost = 32 * (first + i) + ptx::highest_bit(word.some);
        }
        if (warp == 0 && lane == 0) words()[first + i] = word;
        for (uint32_t part = word.some & ~word.all; part != 0; part &= part - 1, ++rank) {
          if (rank >= params.cover.num_tiles || rank % kPlaces != warp / kGroups) continue;
          const int row = warp % kGroups * 32;
          const int key = first_key(32 * (first + i) + ptx::lowest_bit(part));
          uint32_t seen[kWords];
          look(first_tile_row() + row, key, seen);
          store_by_lane(tile(rank), row + lane, key, seen);
        }
      }
    }
    if (kForward.follows_documents && warp == 0 && lane == 0) {
      // With nothing to see one block is walked all the same.
      const int left = ptx::max_of(leftmost, 0);
      words()[-1] = {static_cast<unsigned>(left), static_cast<unsigned>(rightmost - left + 1), 0,
                     0};
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
  constexpr bool kFollows = config.forward.follows_documents;
  const int blocks = params.forward.num_blocks_m * tiles_per_window(config.forward),
            index = ptx::block_idx_x() / parts;
  const CoverBlock<config, Modification> block(params.forward, params.modification, index / blocks,
                                               index % blocks, ptx::thread_idx_x());
  if constexpr (config.looks_at_pairs) {
    block.run_pairs(ptx::block_idx_x() % parts);
  } else if constexpr (config.is_by_key) {
    block.run_word(ptx::block_idx_x() % parts);
  } else {
    if (block.has_rows() || !kFollows) block.run_bounds();
  }
}

}  // namespace sirdar::sm90
