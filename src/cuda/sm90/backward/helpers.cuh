// The helper warpgroup: one thread loads, one or three bring dQ to memory.
#pragma once

#include "cuda/sm90/backward/shared.cuh"
#include "cuda/sm90/backward/work.cuh"

namespace sirdar::sm90 {

template <int kHeadDim, int kRows>
SIRDAR_DEVICE void load_tile(uint32_t dst, const TensorMap& map, uint32_t full, int row, int head,
                             int batch, uint64_t policy) {
  SIRDAR_UNROLL
  for (int c = 0; c < columns(kHeadDim) / 64; ++c) {
    ptx::cp_async_bulk_tensor_4d_load(dst + c * kRows * 128, map, full, 64 * c, row, head, batch,
                                      policy);
  }
}

// One thread: K and V of a key block once, then Q and dO tile by tile with their statistics.
template <BackwardConfig config>
struct Loader {
  const BackwardParams& params;
  BackwardShared<config> s;
  uint64_t keep = ptx::createpolicy_evict_last();   // Q and dO are read by many blocks
  uint64_t once = ptx::createpolicy_evict_first();  // K and V by one
  RingPosition<config.num_stages_q> q_ring{};
  RingPosition<config.num_stages_dout> dout_ring{};

  SIRDAR_DEVICE void load_v(const KeyBlock& block) {
    ptx::mbarrier_arrive_expect_tx(s.v_full(), v_bytes(config));
    load_tile<config.head_dim_v, block_keys(config)>(s.v(), params.v, s.v_full(), block.first_key,
                                                     block.head_kv, block.batch, once);
  }

  SIRDAR_DEVICE void load_q(const KeyBlock& block, const TileWalk& walk) {
    const uint32_t full = s.q_full(q_ring.stage);
    ptx::mbarrier_wait(s.q_empty(q_ring.stage), q_ring.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, q_bytes(config) + row_bytes(config));
    load_tile<config.head_dim, config.block_m>(
        s.q(q_ring.stage), params.q, full, walk.tile * config.block_m,
        block.head_kv * params.group_size + walk.head, block.batch, keep);
    ptx::cp_async_bulk_load(s.lse(q_ring.stage),
                            params.start_lse + tile_index(params, block, walk) * config.block_m,
                            row_bytes(config), full);
    q_ring.advance();
  }

  SIRDAR_DEVICE void load_dout(const KeyBlock& block, const TileWalk& walk) {
    const uint32_t full = s.dout_full(dout_ring.stage);
    ptx::mbarrier_wait(s.dout_empty(dout_ring.stage), dout_ring.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, dout_bytes(config) + row_bytes(config));
    load_tile<config.head_dim_v, config.block_m>(
        s.dout(dout_ring.stage), params.dout, full, walk.tile * config.block_m,
        block.head_kv * params.group_size + walk.head, block.batch, keep);
    ptx::cp_async_bulk_load(s.delta(dout_ring.stage),
                            params.start_delta + tile_index(params, block, walk) * config.block_m,
                            row_bytes(config), full);
    dout_ring.advance();
  }

  SIRDAR_DEVICE void run() {
    int parity = 1;  // of kv_empty: free at the beginning
    for (int item = ptx::block_idx_x(); item < params.num_items; item += ptx::grid_dim_x()) {
      const KeyBlock block = block_of<config>(params, item);
      ptx::mbarrier_wait(s.kv_empty(), parity);
      parity ^= 1;
      ptx::mbarrier_arrive_expect_tx(s.k_full(), k_bytes(config));
      load_tile<config.head_dim, block_keys(config)>(s.k(), params.k, s.k_full(), block.first_key,
                                                     block.head_kv, block.batch, once);
      TileWalk walk(block, params.group_size);
      if (walk.is_done()) {
        load_v(block);
        continue;
      }
      load_q(block, walk);  // scores need K and Q alone
      load_v(block);
      load_dout(block, walk);
      for (walk.advance(); !walk.is_done(); walk.advance()) {
        load_q(block, walk);
        load_dout(block, walk);
      }
    }
  }
};

// One thread of each reducing warp: units of dQ from shared to global memory, added there.
template <BackwardConfig config>
struct Reducer {
  static constexpr int kUnits = num_units(config), kSlots = config.num_slots,
                       kReducers = num_reducers(config), kBarriers = num_unit_barriers(config);
  const BackwardParams& params;
  BackwardShared<config> s;
  int index;       // of the reducers
  int step = 0;    // tiles so far, of all reducers
  int parity = 0;  // of this one's barriers, when deterministic

  SIRDAR_DEVICE float* units_of(const KeyBlock& block, const TileWalk& walk) const {
    return params.dq_sum + tile_index(params, block, walk) * (kUnits * kUnitFloats);
  }

  // Whoever is next hears of it when the sums are in memory.
  SIRDAR_DEVICE void add_in_turn(const KeyBlock& block, const TileWalk& walk) {
    if (step % kReducers != index) return;
    int* const turns = params.turns + tile_index(params, block, walk);
    const int turn = turn_of<config>(params, block, walk.tile);
    float* const units = units_of(block, walk);
    SIRDAR_NO_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      const int slot = (step * kUnits + u) % kSlots;
      ptx::mbarrier_wait(s.unit_full(index * kUnits + u), parity);
      if (u == 0) {
        ptx::wait_until_equal(turns, turn);
        ptx::fence_proxy_async();
      }
      if (turn == 0) {  // nothing is there yet
        ptx::cp_async_bulk_store(units + u * kUnitFloats, s.unit(slot), kUnitBytes);
      } else {
        ptx::cp_async_bulk_reduce_add(units + u * kUnitFloats, s.unit(slot), kUnitBytes);
      }
      ptx::cp_async_bulk_commit_group();
      if constexpr (kSlots < kUnits) {
        ptx::cp_async_bulk_wait_group_read<0>();
        ptx::mbarrier_arrive(s.slot_empty(slot));
      }
    }
    if constexpr (kSlots >= kUnits) {
      ptx::cp_async_bulk_wait_group_read<0>();
      for (int u = 0; u < kUnits; ++u) {
        ptx::mbarrier_arrive(s.slot_empty((step * kUnits + u) % kSlots));
      }
    }
    ptx::cp_async_bulk_wait_group<0>();
    ptx::fence_proxy_async();
    ptx::fence_gpu();
    ptx::store_release(turns, turn + 1);
    parity ^= 1;
  }

  SIRDAR_DEVICE void run_in_turn() {
    for (int item = ptx::block_idx_x(); item < params.num_items; item += ptx::grid_dim_x()) {
      const KeyBlock block = block_of<config>(params, item);
      for (TileWalk walk(block, params.group_size); !walk.is_done(); walk.advance()) {
        add_in_turn(block, walk);
        ++step;
      }
    }
  }

  // A slot goes back when the unit behind it is under way.
  SIRDAR_DEVICE void run_freely() {
    RingPosition<kSlots> ring;
    int pending = -1;
    for (int item = ptx::block_idx_x(); item < params.num_items; item += ptx::grid_dim_x()) {
      const KeyBlock block = block_of<config>(params, item);
      for (TileWalk walk(block, params.group_size); !walk.is_done(); walk.advance()) {
        float* const units = units_of(block, walk);
        SIRDAR_NO_UNROLL
        for (int u = 0; u < kUnits; ++u) {
          ptx::mbarrier_wait(s.unit_full(ring.stage), ring.parity);
          ptx::cp_async_bulk_reduce_add(units + u * kUnitFloats, s.unit(ring.stage), kUnitBytes);
          ptx::cp_async_bulk_commit_group();
          if constexpr (kSlots > 1) {
            if (pending >= 0) {
              ptx::cp_async_bulk_wait_group_read<1>();
              ptx::mbarrier_arrive(s.slot_empty(pending));
            }
            pending = ring.stage;
          } else {
            ptx::cp_async_bulk_wait_group_read<0>();
            ptx::mbarrier_arrive(s.slot_empty(0));
          }
          ring.advance();
        }
      }
    }
    ptx::cp_async_bulk_wait_group_read<0>();
    if (pending >= 0) ptx::mbarrier_arrive(s.slot_empty(pending));
  }

  SIRDAR_DEVICE void run() {
    if constexpr (config.is_deterministic) {
      run_in_turn();
    } else {
      run_freely();
    }
  }
};

}  // namespace sirdar::sm90
