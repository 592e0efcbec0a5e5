// From a block's number to its keys, and to the query tiles that see them.
#pragma once

#include "cuda/sm90/backward/config.h"
#include "cuda/sm90/backward/params.h"
#include "cuda/sm90/bounds.cuh"
#include "cuda/sm90/rows.cuh"

namespace sirdar::sm90 {

template <BackwardConfig config>
using BackwardBounds = MaskBounds<config.mask, BackwardParams>;

// A sequence's rows, and its tiles in the workspace.
struct Sequence {
  Rows q, k;
  int first_tile, num_tiles, num_blocks;  // of queries; key blocks
};
template <BackwardConfig config>
SIRDAR_DEVICE Sequence sequence_of(const BackwardParams& params, int batch) {
  constexpr bool kLengths = config.has_lengths;
  Sequence sequence;
  sequence.q = rows_in<kLengths>(params.cu_seqlens_q, params.seqused_q, params.seqlen_q, batch);
  sequence.k = rows_in<kLengths>(params.cu_seqlens_k, params.seqused_k, params.seqlen_k, batch);
  sequence.first_tile = batch * params.num_tiles;
  sequence.num_tiles = params.num_tiles;
  sequence.num_blocks = params.num_blocks_n;
  if constexpr (kLengths) {
    if (params.cu_seqlens_q.data != nullptr) {
      sequence.first_tile = sequence.q.begin / config.block_m + batch;
    }
    sequence.num_tiles = (sequence.q.length + config.block_m - 1) / config.block_m;
    sequence.num_blocks = (sequence.k.length + cluster_keys(config) - 1) / cluster_keys(config);
  }
  return sequence;
}
// What key blocks and query tiles are counted in: a sequence or, with has_chunks, one of its
// chunks.
struct Walked {
  int batch, chunk;
};
template <BackwardConfig config>
SIRDAR_DEVICE Walked walked_of(const BackwardParams& params, int number) {
  if constexpr (!config.has_chunks) return {number, 0};
  const int batch = number / params.num_chunks;
  return {batch, number - batch * params.num_chunks};
}
template <BackwardConfig config>
SIRDAR_DEVICE int number_of(const BackwardParams& params, const Walked& walked) {
  return config.has_chunks ? walked.batch * params.num_chunks + walked.chunk : walked.batch;
}
template <BackwardConfig config>
SIRDAR_DEVICE Sequence sequence_of(const BackwardParams& params, const Walked& walked) {
  Sequence sequence = sequence_of<config>(params, walked.batch);
  if constexpr (config.has_chunks) {
    const int begin = walked.chunk * params.chunk_rows;
    const auto narrow = [&](Rows& rows) {
      rows.begin = begin;
      rows.length = ptx::max_of(ptx::min_of(params.chunk_rows, rows.length - begin), 0);
    };
    narrow(sequence.q);
    narrow(sequence.k);
    sequence.first_tile += begin / config.block_m;
    sequence.num_tiles = (sequence.q.length + config.block_m - 1) / config.block_m;
    sequence.num_blocks = (sequence.k.length + cluster_keys(config) - 1) / cluster_keys(config);
  }
  return sequence;
}
template <BackwardConfig config>
SIRDAR_DEVICE BackwardBounds<config> bounds_of(const BackwardParams& params,
                                               const Sequence& sequence) {
  return BackwardBounds<config>(params, sequence.q.length, sequence.k.length);
}

// Whether a row's weights are made again (level.cuh).
template <BackwardConfig config>
SIRDAR_DEVICE bool is_far(float lse) {
  if constexpr (!has_levels(config)) return false;
  const float size = ptx::absolute(lse);
  return size > far_lse(config) && size < -kMinusInfinity;
}

struct QueryTile {
  Walked walked;
  int head, tile;
};

// The items of a thread block, or of a cluster.
template <BackwardConfig config>
SIRDAR_DEVICE int first_item() {
  return ptx::block_idx_x() / config.cluster_size;
}
template <BackwardConfig config>
SIRDAR_DEVICE int item_stride() {
  return ptx::grid_dim_x() / config.cluster_size;
}
// Which block of its cluster this is.
template <BackwardConfig config>
SIRDAR_DEVICE int rank_of() {
  if constexpr (config.cluster_size == 1) return 0;
  return ptx::cluster_ctarank();
}

// 128 keys (64) of one K/V head, and the query tiles [begin, end) of every head of its group that
// see some of them, beginning at `start` and going round.
struct KeyBlock {
  Sequence sequence;
  Walked walked;
  int index, first_key, batch, head_kv;  // index: of the cluster
  int begin, end, start;
  int first_of_ring;  // key block
  int num_walked;     // tiles of all heads; under masks that read data
  bool is_reversed;   // the tiles from the last to the first, behind key blocks further left
};

// Which keys of which head.
template <BackwardConfig config>
SIRDAR_DEVICE void place_of(const BackwardParams& params, int item, KeyBlock& block) {
  int head;
  block.first_of_ring = 0;
  block.is_reversed = false;
  if constexpr (!is_masked(config) && !has_rings(config)) {  // by head
    head = item / params.num_blocks_n;
    block.index = item - head * params.num_blocks_n;
  } else {
    const int head_items =
        has_rings(config) ? params.num_rings * params.ring_blocks : params.num_blocks_n;
    const int items = params.section_heads * head_items;
    const int section = ptx::min_of(item / items, params.num_sections);
    const int rest = item - section * items;
    const int first_head = section * params.section_heads;
    const int heads = section < params.num_sections ? params.section_heads
                                                    : params.num_items / head_items - first_head;
    if constexpr (has_rings(config)) {
      const int round = rest / params.ring_blocks;  // by ring, then head
      const int ring = round / heads;
      block.first_of_ring = ring * params.ring_blocks;
      block.index = block.first_of_ring + rest - round * params.ring_blocks;
      head = first_head + round - ring * heads;
    } else {
      const int rank = rest / heads;
      // The first keys are seen most often. In a fixed order those come first that add first.
      if constexpr (config.mirrors_tail && config.is_deterministic) {
        block.is_reversed = section >= params.first_mirrored;
      }
      block.index =
          config.is_deterministic && !block.is_reversed ? params.num_blocks_n - 1 - rank : rank;
      head = first_head + rest - rank * heads;
    }
  }
  block.first_key = block.index * cluster_keys(config) + rank_of<config>() * block_keys(config);
  const int number = head / params.num_heads_kv;
  block.walked = walked_of<config>(params, number);
  block.batch = block.walked.batch;
  block.head_kv = head - number * params.num_heads_kv;
}

// Key blocks of its ring: the last one may have fewer.
SIRDAR_DEVICE int ring_size(const BackwardParams& params, const KeyBlock& block) {
  return ptx::min_of(params.ring_blocks, block.sequence.num_blocks - block.first_of_ring);
}

SIRDAR_DEVICE long long list_of(const WalkView& walk, int batch, int head) {
  return batch * walk.list_of_batch + head * walk.list_of_head;
}
// A key block's span, and then words.
SIRDAR_DEVICE WalkWord* span_of(const BackwardParams& params, long long list, int index) {
  const WalkView& walk = params.walk;
  return walk.walks + (list * params.num_blocks_n + index) * (1 + walk.num_words);
}
// The query tiles that a block walks, of all heads of its group, as cover_walks.cuh found them.
SIRDAR_DEVICE void find_walked(const BackwardParams& params, KeyBlock& block) {
  const WalkView& walk = params.walk;
  const int lists = walk.list_of_head == 0 ? 1 : params.group_size;
  block.begin = params.num_tiles;
  block.end = block.num_walked = 0;
  SIRDAR_NO_UNROLL
  for (int i = 0; i < lists; ++i) {
    const long long list = list_of(walk, block.batch, block.head_kv * params.group_size + i);
    const ptx::Int4 span = ptx::load_written_int4(span_of(params, list, block.index));
    block.begin = ptx::min_of(block.begin, span.x);
    block.end = ptx::max_of(block.end, span.y);
    block.num_walked += span.z;
  }
  if (walk.list_of_head == 0) block.num_walked *= params.group_size;
}
// The query tiles that see some of a block's keys; its sequence and keys are known.
template <BackwardConfig config>
SIRDAR_DEVICE void find_tiles(const BackwardParams& params, KeyBlock& block) {
  const Sequence& sequence = block.sequence;
  const BackwardBounds<config> bounds = bounds_of<config>(params, sequence);
  const int first_key = block.index * cluster_keys(config);  // both blocks walk the same tiles
  const int end_key = ptx::min_of(first_key + cluster_keys(config), sequence.k.length);
  block.begin = bounds.row_begin(first_key) / config.block_m;
  block.end = (ptx::max_of(bounds.row_end(end_key - 1), 0) + config.block_m - 1) / config.block_m;
  block.end = ptx::max_of(ptx::min_of(block.end, sequence.num_tiles), block.begin);
  if constexpr (config.has_lengths || config.has_chunks || has_rings(config)) {
    if (block.index >= sequence.num_blocks) block.end = block.begin;
  }
}

template <BackwardConfig config>
SIRDAR_DEVICE KeyBlock block_of(const BackwardParams& params, int item) {
  KeyBlock block;
  place_of<config>(params, item, block);
  block.sequence = sequence_of<config>(params, block.walked);
  const Sequence& sequence = block.sequence;
  if constexpr (config.has_mask_mod) {
    find_walked(params, block);
  } else {
    find_tiles<config>(params, block);
  }
  block.start = block.is_reversed ? ptx::max_of(block.end - 1, block.begin) : block.begin;
  if constexpr (has_rings(config)) {
    if (block.end > block.begin) {
      block.start =
          (block.index - block.first_of_ring) * sequence.num_tiles / ring_size(params, block);
    }
  }
  return block;
}

// Whether the sequence is so long that there are rows to be written, used or not.
template <BackwardConfig config>
SIRDAR_DEVICE bool has_keys(const BackwardParams& params, const KeyBlock& block) {
  if constexpr (config.has_chunks) return block.index < block.sequence.num_blocks;
  if constexpr (!config.has_lengths) {
    return !has_rings(config) || block.index < params.num_blocks_n;
  }
  return block.index * cluster_keys(config) <
         rows_there<true>(params.cu_seqlens_k, params.seqlen_k, block.batch);
}

// The key block of a mask that adds to a query tile first; the others follow from right to left.
template <BackwardConfig config>
SIRDAR_DEVICE int first_adder(const BackwardParams& params, const Sequence& sequence, int tile) {
  const BackwardBounds<config> bounds = bounds_of<config>(params, sequence);
  return (bounds.hi((tile + 1) * config.block_m - 1) - 1) / cluster_keys(config);
}

// How many of the key blocks before `end` add to the same sum as `index`.
template <BackwardConfig config>
SIRDAR_DEVICE int sharers_before(int end, int index) {
  constexpr int kSums = config.num_sums;
  return (end + kSums - 1 - index % kSums) / kSums;
}

// How many key blocks add to the same sum of a query tile before this one.
template <BackwardConfig config>
SIRDAR_DEVICE int turn_of(const BackwardParams& params, const KeyBlock& block, int tile) {
  const int index = block.index;
  const auto before = [&](int end) { return sharers_before<config>(end, index); };
  if constexpr (has_rings(config)) {
    // Of a ring the last one that begins no later, those left of it, and round; earlier rings
    // are through.
    const int begin = block.first_of_ring, size = ring_size(params, block);
    const int tiles = block.sequence.num_tiles;
    const int first = begin + ((tile + 1) * size + tiles - 1) / tiles - 1;
    const int through = before(begin) + before(first + 1) - before(index + 1);
    return index <= first ? through : through + before(begin + size) - before(begin);
  }
  if constexpr (config.mirrors_tail) {
    if (block.is_reversed) {
      const BackwardBounds<config> bounds = bounds_of<config>(params, block.sequence);
      return before(index) - before(bounds.lo(tile * config.block_m) / cluster_keys(config));
    }
  }
  return before(first_adder<config>(params, block.sequence, tile) + 1) - before(index + 1);
}

// How many key blocks add to a sum of it.
template <BackwardConfig config>
SIRDAR_DEVICE int count_adders(const BackwardParams& params, const Sequence& sequence, int tile,
                               int sum) {
  const BackwardBounds<config> bounds = bounds_of<config>(params, sequence);
  const int lo = bounds.lo(tile * config.block_m), hi = bounds.hi((tile + 1) * config.block_m - 1);
  if (hi <= 0 || tile >= sequence.num_tiles || lo >= sequence.k.length) return 0;
  const int first = lo / cluster_keys(config), last = (hi - 1) / cluster_keys(config);
  return sharers_before<config>(last + 1, sum) - sharers_before<config>(first, sum);
}

// The query tiles of a key block, in the order in which every warp walks them.
struct TileWalk {
  const KeyBlock& block;
  int tile, head, left;  // head within the group

  SIRDAR_DEVICE TileWalk(const KeyBlock& of, const BackwardParams& params)
      : block(of), tile(of.start), head(0), left(params.group_size * (of.end - of.begin)) {}

  SIRDAR_DEVICE bool is_done() const { return left == 0; }
  SIRDAR_DEVICE void advance() {
    if (block.is_reversed) {
      tile = tile == block.begin ? block.end - 1 : tile - 1;
    } else {
      tile = tile + 1 == block.end ? block.begin : tile + 1;
    }
    if (tile == block.start) ++head;
    --left;
  }
};

// Which of a block's halves of 64 keys see nothing of a query tile; never both.
template <BackwardConfig config>
SIRDAR_DEVICE bool is_blind(const BackwardParams& params, const KeyBlock& block, int tile,
                            int half) {
  if constexpr (config.mask == MaskForm::full || is_wide(config)) return false;
  const BackwardBounds<config> bounds = bounds_of<config>(params, block.sequence);
  const int middle = block.first_key + 64;
  const bool upper_is_blind = bounds.hi((tile + 1) * config.block_m - 1) <= middle;
  if (half == 1) return upper_is_blind;
  if constexpr (config.mask == MaskForm::upper) return false;
  return bounds.lo(tile * config.block_m) >= middle && !upper_is_blind;
}

// A tile's place in the workspace.
SIRDAR_DEVICE long long tile_index(const BackwardParams& params, const Sequence& sequence, int head,
                                   int tile) {
  return static_cast<long long>(head) * params.total_tiles + sequence.first_tile + tile;
}
template <class Walk>
SIRDAR_DEVICE long long tile_index(const BackwardParams& params, const KeyBlock& block,
                                   const Walk& walk) {
  return tile_index(params, block.sequence, block.head_kv * params.group_size + walk.head,
                    walk.tile);
}

}  // namespace sirdar::sm90
