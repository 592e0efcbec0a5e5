// The producer: one warp that hands out work items and loads their tiles, never waiting for more
// than a free buffer. K runs one block ahead of V, over the borders of items too.
#pragma once

#include "cuda/sm90/forward/cover.cuh"
#include "cuda/sm90/forward/shared.cuh"

namespace sirdar::sm90 {

template <ForwardConfig config>
struct Producer {
  // A block of V that is still to be loaded.
  struct PendingV {
    int row = -1, head = 0, batch = 0;  // row < 0: none
    int rows_left = 0;                  // to the end of the sequence
    // Warpgroups whose output of the item before is to have left its stage, and the item's parity.
    int first_out = 0, end_out = 0, parity = 0;
  };

  // Loads of Q an item.
  static constexpr int kQParts = block_m(config) / q_rows(config);

  const ForwardParams& params;
  int* counter;  // of tickets and of blocks that are done; null: items are dealt out in turn
  SharedAddresses<config> s;
  int lane;
  uint64_t keep, once;  // L2 priorities: K and V are read by many blocks, Q by one
  RingPosition<config.num_stages_k> k_ring;
  RingPosition<config.num_stages_v> v_ring;
  RingPosition<config.num_q_buffers> q_ring;
  PendingV pending;
  int landed_parity = 0, item_parity = 0;

  SIRDAR_DEVICE Producer(const ForwardParams& p, Counters* counters, SharedAddresses<config> shared,
                         int lane_idx)
      : params(p),
        counter(config.shares_last_round                 ? nullptr
                : counters != nullptr && p.counters >= 0 ? &counters[p.counters].next
                                                         : p.counter),
        s(shared),
        lane(lane_idx),
        keep(ptx::createpolicy_evict_last()),
        once(ptx::createpolicy_evict_first()) {}

  template <int kHeadDim, int kRows>
  SIRDAR_DEVICE void load(uint32_t dst, const TensorMap& map, uint32_t full, int row, int head,
                          int batch, uint64_t policy) {
    SIRDAR_UNROLL
    for (int c = 0; c < columns(kHeadDim) / 64; ++c) {
      ptx::cp_async_bulk_tensor_4d_load(dst + c * kRows * 128, map, full, 64 * c, row, head, batch,
                                        policy);
    }
  }

  // A tile of K or V. In a cluster this block's share of its rows, into both blocks; the other
  // block's comes by itself, and `full` counts the bytes of both.
  template <int kHeadDim>
  SIRDAR_DEVICE void load_keys_tile(uint32_t dst, const TensorMap& map, uint32_t full, int row,
                                    int head, int batch) {
    if constexpr (config.cluster_size == 1) {
      load<kHeadDim, config.block_n>(dst, map, full, row, head, batch, keep);
    } else {
      constexpr int kRows = config.block_n / config.cluster_size;
      const int rank = ptx::cluster_ctarank();
      SIRDAR_UNROLL
      for (int c = 0; c < columns(kHeadDim) / 64; ++c) {
        ptx::cp_async_bulk_tensor_4d_multicast(dst + (c * config.block_n + rank * kRows) * 128, map,
                                               full, 64 * c, row + rank * kRows, head, batch, 3,
                                               keep);
      }
    }
  }

  // The lanes meet after they have looked whether a stage is free: one that looked after the stage
  // has been filled and given back again would find the barrier two phases on, and wait for ever.
  SIRDAR_DEVICE void load_k(int row, int head, int batch, const SeenBlock& block) {
    if constexpr (config.cluster_size > 1) {
      ptx::mbarrier_wait_cluster(s.k_empty(k_ring.stage), k_ring.parity ^ 1);
    } else {
      ptx::mbarrier_wait(s.k_empty(k_ring.stage), k_ring.parity ^ 1);
    }
    ptx::syncwarp();
    if (lane == 0) {
      if constexpr (config.has_mask_mod) write_block(s.block_info(k_ring.stage), block);
      ptx::mbarrier_arrive_expect_tx(s.k_full(k_ring.stage), k_bytes(config));
      load_keys_tile<config.head_dim>(s.k(k_ring.stage), params.k, s.k_full(k_ring.stage), row,
                                      head, batch);
    }
    ptx::syncwarp();
    k_ring.advance();
  }

  SIRDAR_DEVICE void load_pending_v() {
    if (pending.row < 0) return;
    if constexpr (sends_out(config)) {
      for (int w = pending.first_out; w < pending.end_out; ++w) {
        ptx::mbarrier_wait(s.out_empty(w), pending.parity ^ 1);
      }
    }
    const uint32_t full = s.v_full(v_ring.stage);
    const bool is_cut = config.has_lengths && pending.rows_left < config.block_n;
    const uint32_t landed = is_cut ? s.v_landed() : full;
    if constexpr (config.cluster_size > 1) {
      ptx::mbarrier_wait_cluster(s.v_empty(v_ring.stage), v_ring.parity ^ 1);
    } else {
      ptx::mbarrier_wait(s.v_empty(v_ring.stage), v_ring.parity ^ 1);
    }
    ptx::syncwarp();
    if (lane == 0) {
      ptx::mbarrier_arrive_expect_tx(landed, v_bytes(config));
      load_keys_tile<config.head_dim_v>(s.v(v_ring.stage), params.v, landed, pending.row,
                                        pending.head, pending.batch);
    }
    ptx::syncwarp();
    if (is_cut) clear_v_end(full);
    v_ring.advance();
    pending.row = -1;
  }

  // Rows behind the end of a sequence belong to others, or to nobody: their weights are 0, but 0
  // times a NaN is not. They become zeros before the consumers hear of the tile.
  SIRDAR_DEVICE void clear_v_end(uint32_t full) {
    ptx::mbarrier_wait(s.v_landed(), landed_parity);
    landed_parity ^= 1;
    constexpr int kPieces = config.block_n * 8;  // of 16 bytes, in a chunk of 64 columns
    const int first = 8 * ptx::max_of(pending.rows_left, 0);
    for (int c = 0; c < columns(config.head_dim_v) / 64; ++c) {
      const uint32_t chunk = s.v(v_ring.stage) + c * config.block_n * 128;
      for (int i = first + lane; i < kPieces; i += 32) {
        ptx::store_shared(chunk + 16 * i, {0, 0, 0, 0});
      }
    }
    ptx::fence_proxy_async_shared();
    ptx::syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(full);
  }

  // Whether there is an item; fills the slot that the consumers read next.
  SIRDAR_DEVICE void publish(int slot, const WorkItem& item) {
    if (lane != 0) return;
    write_item<config>(s.info(slot), item);
    if (item.block < 0) {
      ptx::mbarrier_arrive(s.q_full(q_ring.stage));
    } else {
      load_q(item, 0);  // whose arrival also publishes the item
    }
  }
  // A tile's rows, or with one buffer those of a warpgroup. With packed heads a box has all heads
  // of a pack, or 64 of them.
  SIRDAR_DEVICE void load_q(const WorkItem& item, int part) {
    constexpr int kRows = q_rows(config);
    const uint32_t full = s.q_full(q_ring.stage + part);
    const uint32_t tile = s.q(q_ring.stage) + part * kRows * 128;
    const int first = item.block * block_m(config) + part * kRows;
    const int row = item.q_begin + query_row<config>(first);
    const int batch = batch_coordinate(item, params.cu_seqlens_q);
    ptx::mbarrier_arrive_expect_tx(full, 2 * kRows * columns(config.head_dim));
    SIRDAR_UNROLL
    for (int c = 0; c < columns(config.head_dim) / 64; ++c) {
      const uint32_t chunk = tile + c * block_m(config) * 128;
      if constexpr (config.num_packed_heads == 1) {
        ptx::cp_async_bulk_tensor_4d_load(chunk, params.q, full, 64 * c, row, item.head, batch,
                                          once);
      } else {
        ptx::cp_async_bulk_tensor_5d_load(chunk, params.q, full, 64 * c,
                                          place_in_pack<config>(first), row, item.head, batch,
                                          once);
      }
    }
  }

  SIRDAR_DEVICE int batch_coordinate(const WorkItem& item, const IntView& cu_seqlens) const {
    return config.has_lengths && cu_seqlens.data != nullptr ? 0 : item.batch;
  }

  // The ticket behind one, in lane 0.
  SIRDAR_DEVICE int draw(int ticket) {
    if constexpr (!config.is_persistent) return params.num_items;
    if (config.cluster_size > 1 || counter == nullptr) {
      return ticket + ptx::grid_dim_x() / config.cluster_size;
    }
    return lane == 0 ? ptx::grid_dim_x() + ptx::atomic_add(counter, 1) : 0;
  }

  // The first item from a ticket on; the ticket becomes the item's.
  SIRDAR_DEVICE WorkItem find_item(int& ticket) {
    WorkItem item;
    item.block = -1;
    while (ticket < params.num_items) {
      item = item_of<config>(params, ticket);
      if constexpr (config.has_mask_mod) {
        if (item.num_blocks > 0) tighten(params, lane, item);
      }
      if (item.num_blocks > 0) break;
      item.block = -1;
      ticket = ptx::uniform(draw(ticket));
    }
    return item;
  }

  SIRDAR_DEVICE void hand_out(int slot, const WorkItem& item) {
    ptx::mbarrier_wait(s.q_empty(q_ring.stage), q_ring.parity ^ 1);
    publish(slot, item);
    ptx::syncwarp();
    q_ring.advance();
  }
  // With one buffer: Q of the warpgroups that are behind, or that there is no item. The first K is
  // loaded before.
  SIRDAR_DEVICE void hand_out_others(const WorkItem& item) {
    for (int part = 1; part < kQParts; ++part) {
      ptx::mbarrier_wait(s.q_empty(part), q_ring.parity);  // which has advanced
      ptx::syncwarp();  // an item of one block is over soon: no lane may look for its phase then
      if (lane == 0) {
        if (item.block < 0) {
          ptx::mbarrier_arrive(s.q_full(part));
        } else {
          load_q(item, part);
        }
      }
      ptx::syncwarp();
    }
  }
  SIRDAR_DEVICE static int slot_behind(int slot) {
    return slot + 1 == num_items_ahead(config) ? 0 : slot + 1;
  }

  SIRDAR_DEVICE void run() {
    if constexpr (config.num_q_buffers > 2 && config.cluster_size == 1) {
      run_ahead();
    } else {
      run_behind();
    }
    load_pending_v();
    finish_tickets();
  }

  // With three Q buffers: while an item's last key blocks are still to be loaded the next item is
  // found and its Q asked for, which comes from memory and not from L2.
  SIRDAR_DEVICE void run_ahead() {
    constexpr int kDrawn = 3, kFound = 2;  // before these blocks are loaded, and behind them
    int ticket = ptx::block_idx_x(), slot = -1;
    WorkItem item{};  // none yet, which has no blocks
    while (item.block >= 0) {
      const Keys keys = keys_of(item);
      CoverCursor cursor(params, item);
      int drawn = ticket;
      bool is_drawn = false, is_found = false;
      for (int j = item.num_blocks - 1;; j = block_before(cursor, item, j)) {
        if (j >= 0) {
          if (!is_drawn && j <= kDrawn) drawn = draw(ticket);
          is_drawn = j <= kDrawn;
          load_block(keys, cursor, item, j);
        }
        if (!is_found && j <= kFound) {
          ticket = ptx::uniform(drawn);
          slot = slot_behind(slot);
          hand_out(slot, find_item(ticket));
          is_found = true;
        }
        if (j <= 0) break;
      }
      item = read_item<config>(params, s.info(slot));  // what it was found to be
    }
  }

  SIRDAR_DEVICE void run_behind() {
    int ticket = ptx::block_idx_x() / config.cluster_size;  // a cluster's blocks share one
    for (int slot = 0;; slot = slot_behind(slot)) {
      const WorkItem item = find_item(ticket);
      // With one buffer, Q is free only when this item's last scores are done: V must not wait.
      if constexpr (config.num_q_buffers == 1) load_pending_v();
      hand_out(slot, item);
      if (item.block < 0) return hand_out_others(item);
      const Keys keys = keys_of(item);
      CoverCursor cursor(params, item);
      int place = 0;  // of a block in the walk
      for (int j = item.num_blocks - 1; j >= 0; j = block_before(cursor, item, j)) {
        if (j == 0) ticket = ptx::uniform(draw(ticket));
        load_block(keys, cursor, item, j);
        if (place == 0) hand_out_others(item);
        if constexpr (sends_out(config)) hold_pending_v(place, j == 0);
        ++place;
      }
      item_parity ^= 1;
    }
  }

  // The V that is still to be loaded takes a stage that an output of the item before leaves, as the
  // item's first ones do. Its only one waits for all outputs, since the item's own takes the other
  // stage.
  SIRDAR_DEVICE void hold_pending_v(int place, bool is_last) {
    constexpr int kAll = config.num_consumers;
    pending.first_out = ptx::min_of(place, kAll);
    pending.end_out = is_last ? kAll : ptx::min_of(place + 1, kAll);
    pending.parity = item_parity;
  }

  // An item's, as TMA counts: `begin` is the first row of its sequence.
  struct Keys {
    int head, batch, begin;
  };
  SIRDAR_DEVICE Keys keys_of(const WorkItem& item) const {
    const IntView& cu = params.cu_seqlens_k;
    const bool is_ragged = config.has_lengths && cu.data != nullptr;
    return {params.by_group.quotient(item.head), batch_coordinate(item, cu),
            is_ragged ? cu.data[item.batch * cu.stride] : 0};
  }
  // K of one of its blocks, and V of the block before.
  SIRDAR_DEVICE void load_block(const Keys& keys, CoverCursor& cursor, const WorkItem& item,
                                int j) {
    const int row = (item.first_block + j) * config.block_n;
    load_k(keys.begin + row, keys.head, keys.batch, known(cursor, item, item.first_block + j));
    load_pending_v();
    pending = {keys.begin + row, keys.head, keys.batch, item.seqlen_k - row};
  }

  SIRDAR_DEVICE SeenBlock known(CoverCursor& cursor, const WorkItem& item, int block) const {
    if constexpr (!config.has_mask_mod) return {};
    cursor.next(block);
    return cursor.seen(params, item, block);
  }

  // The item's next block to the left, of those that are seen.
  SIRDAR_DEVICE int block_before(CoverCursor& cursor, const WorkItem& item, int j) const {
    if constexpr (!config.has_mask_mod) return j - 1;
    return cursor.next(item.first_block + j - 1) - item.first_block;
  }

  // The last block to finish leaves the counter as it was found.
  SIRDAR_DEVICE void finish_tickets() {
    if (counter == nullptr || lane != 0) return;
    if (ptx::atomic_add(counter + 1, 1) == ptx::grid_dim_x() - 1) {
      counter[0] = 0;
      counter[1] = 0;
      ptx::fence_gpu();
    }
  }
};

}  // namespace sirdar::sm90
