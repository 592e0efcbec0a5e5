// From a ticket to a work item: which query block of which head, and which keys it sees.
#pragma once

#include "cuda/sm90/bounds.cuh"
#include "cuda/sm90/forward/config.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/rows.cuh"
#include "ptx/base.cuh"
#include "ptx/math.cuh"

namespace sirdar::sm90 {

// What masks of the caller's show of one key block.
struct SeenBlock {
  static constexpr int kLook = -1, kAll = -2;
  int index = 0;
  int tile = kLook;  // which of CoverView's has its pairs; kLook: they are to be looked at
};

// Nothing here is larger than 2^30 (the host refuses), so sums of two fit.
struct WorkItem {
  int block;        // query block within its sequence; < 0: no more work
  int batch, head;  // head of the queries, or pack of heads
  int num_blocks;   // key blocks that some row sees, at least 1
  int first_block;  // the leftmost of them
  int q_begin, seqlen_q, seqlen_k;
  int split;  // which part of the keys; of the last round's shares: 0 a whole item, < 0 one that
              // another thread block ends, > 0 one that so many others have parts of
};

// A row of a tile as its sequence counts: tile rows follow each other from block to block, and with
// packed heads those of one query row are neighbours.
struct QueryRow {
  int head, row;
};

// The row alone.
template <ForwardConfig config>
SIRDAR_DEVICE int query_row(int tile_row) {
  if constexpr (config.num_packed_heads == 1) return tile_row;
  return static_cast<int>(static_cast<unsigned>(tile_row) / config.num_packed_heads);
}
// Its place among the heads of a pack.
template <ForwardConfig config>
SIRDAR_DEVICE int place_in_pack(int tile_row) {
  return tile_row & (config.num_packed_heads - 1);
}
// Whether a head has it. Other rows are zeros when loaded, and are not stored.
template <ForwardConfig config>
SIRDAR_DEVICE bool has_head(const ForwardParams& params, int tile_row) {
  return config.num_packed_heads == 1 || place_in_pack<config>(tile_row) < params.heads_per_pack;
}
// Of a row that no head has: the last head's, so that what belongs to heads can be read.
template <ForwardConfig config>
SIRDAR_DEVICE QueryRow query_row_of(const ForwardParams& params, const WorkItem& item,
                                    int tile_row) {
  if constexpr (config.num_packed_heads == 1) return {item.head, tile_row};
  const int place = ptx::min_of(place_in_pack<config>(tile_row), params.heads_per_pack - 1);
  return {item.head * params.heads_per_pack + place, query_row<config>(tile_row)};
}

template <ForwardConfig config>
using KeyBounds = MaskBounds<config.mask, ForwardParams>;

template <ForwardConfig config>
SIRDAR_DEVICE Rows rows_of(const IntView& cu_seqlens, const IntView& seqused, int seqlen,
                           int batch) {
  return rows_in<config.has_lengths>(cu_seqlens, seqused, seqlen, batch);
}

// Where the rows of a ragged sequence end, used or not: the rest of its output is zeros.
template <ForwardConfig config>
SIRDAR_DEVICE int stored_rows(const ForwardParams& params, int batch) {
  if constexpr (config.has_lengths) {
    if (params.cu_seqlens_q.data != nullptr) {
      const IntView& cu = params.cu_seqlens_q;
      return cu.data[(batch + 1) * cu.stride] - cu.data[batch * cu.stride];
    }
  }
  return params.seqlen_q;
}

constexpr bool is_by_head(const ForwardConfig& c) {
  return (c.mask == MaskForm::full && !c.has_mask_mod) || c.order == Order::by_head;
}

// Without masks: head by head, so that blocks at work at one time read the same keys. Others:
// within a section of heads, whose K and V stay in L2, the longest (last) query blocks of all heads
// first. Under a causal mask the shortest of all heads come last, so that thread blocks end at one
// time.
template <ForwardConfig config>
SIRDAR_DEVICE void place_of(const ForwardParams& params, int ticket, int& block, int& batch_head) {
  if constexpr (is_by_head(config)) {
    batch_head = params.by_blocks.quotient(ticket);
    block = ticket - batch_head * params.num_blocks_m;
  } else {
    if constexpr (ends_with_short_blocks(config)) {
      if (ticket >= params.first_short) {
        const int rest = ticket - params.first_short, rank = params.by_batch_heads.quotient(rest);
        block = params.short_blocks - 1 - rank;
        batch_head = rest - rank * params.num_batch_heads;
        return;
      }
    }
    const int items = params.section_heads * (params.num_blocks_m - params.short_blocks);
    const int section = ptx::min_of(params.by_section.quotient(ticket), params.num_sections);
    const int rest = ticket - section * items;
    const bool is_last = section == params.num_sections;
    const int heads = is_last ? params.last_heads : params.section_heads;
    const int rank = (is_last ? params.by_last_heads : params.by_section_heads).quotient(rest);
    block = params.num_blocks_m - 1 - rank;
    batch_head = section * params.section_heads + rest - rank * heads;
  }
}

// A query block with all of its keys; num_blocks is 0 where the sequence has no such block.
template <ForwardConfig config>
SIRDAR_DEVICE WorkItem whole_item_of(const ForwardParams& params, int ticket) {
  constexpr int kRows = block_rows(config);
  WorkItem item;
  int batch_head;
  place_of<config>(params, ticket, item.block, batch_head);
  const int first_row = item.block * config.cluster_size * kRows;  // of a cluster's blocks
  if constexpr (config.cluster_size > 1) {
    item.block = item.block * config.cluster_size + ptx::cluster_ctarank();
  }
  item.batch = params.by_heads.quotient(batch_head);
  item.head = batch_head - item.batch * params.num_heads;
  const Rows q =
      rows_of<config>(params.cu_seqlens_q, params.seqused_q, params.seqlen_q, item.batch);
  const Rows k =
      rows_of<config>(params.cu_seqlens_k, params.seqused_k, params.seqlen_k, item.batch);
  item.q_begin = q.begin;
  item.seqlen_q = q.length;
  item.seqlen_k = k.length;
  if (first_row >= stored_rows<config>(params, item.batch)) {
    item.num_blocks = 0;
    return item;
  }
  const KeyBounds<config> bounds(params, q.length, k.length);
  const int end = first_row < q.length ? bounds.hi(first_row + config.cluster_size * kRows - 1) : 0;
  // With nothing to see one block is walked all the same, fully masked: its rows are zeros.
  item.first_block = ptx::min_of(bounds.lo(first_row), ptx::max_of(end - 1, 0)) / config.block_n;
  const int end_block = (ptx::max_of(end, 0) + config.block_n - 1) / config.block_n;
  item.num_blocks = ptx::max_of(1, end_block - item.first_block);
  return item;
}

// Key blocks of each part of so many, but for the last ones, which may have fewer or none. They
// depend on the query block's own keys and the number of splits alone.
SIRDAR_DEVICE int blocks_per_part(const ForwardParams& params, int num_blocks) {
  return params.parts.by_splits.quotient(num_blocks + params.parts.num_splits - 1);
}

// Shares are counted from the last thread block on, so that an item is ended by the highest of
// those that have parts of it.
SIRDAR_DEVICE int last_slot(const LastRound& last) { return last.grid - 1 - ptx::block_idx_x(); }

// This thread block's share of the last round: what is left of an item from the share's begin on
// (index 0), and the beginning of the next (1). Key blocks count from right to left.
template <ForwardConfig config>
SIRDAR_DEVICE WorkItem share_of(const ForwardParams& params, int index) {
  const LastRound& last = params.last;
  const int begin = last_slot(last) * last.share,
            end = ptx::min_of(begin + last.share, last.num_items * last.num_blocks);
  const int place = last.by_blocks.quotient(begin) + index, origin = place * last.num_blocks;
  const int from = ptx::max_of(begin - origin, 0), to = ptx::min_of(end - origin, last.num_blocks);
  WorkItem item =
      whole_item_of<config>(params, last.first_item + ptx::min_of(place, last.num_items - 1));
  item.first_block += last.num_blocks - to;
  item.num_blocks = ptx::max_of(to - from, 0);
  item.split = from > 0 ? -1 : (last.num_blocks - to + last.share - 1) / last.share;
  return item;
}

// The item of a ticket; num_blocks is 0 where there is nothing to do.
template <ForwardConfig config>
SIRDAR_DEVICE WorkItem item_of(const ForwardParams& params, int ticket) {
  if constexpr (config.shares_last_round) {
    const int share = ticket - params.last.first_item;
    if (share >= 0) return share_of<config>(params, share >= params.last.grid ? 1 : 0);
    WorkItem item = whole_item_of<config>(params, ticket);
    item.split = 0;
    return item;
  }
  if constexpr (!is_split(config)) return whole_item_of<config>(params, ticket);
  const int whole = params.parts.by_splits.quotient(ticket);
  WorkItem item = whole_item_of<config>(params, whole);
  item.split = ticket - whole * params.parts.num_splits;
  const int blocks = blocks_per_part(params, item.num_blocks), begin = item.split * blocks;
  item.first_block += begin;
  item.num_blocks = ptx::max_of(ptx::min_of(blocks, item.num_blocks - begin), 0);
  return item;
}

}  // namespace sirdar::sm90
