// The helper warpgroup: one thread loads, one or three bring dQ to memory.
#pragma once

#include "cuda/sm90/backward/items.cuh"
#include "cuda/sm90/backward/shared.cuh"
#include "cuda/sm90/backward/walk.cuh"

namespace sirdar::sm90 {

template <int kHeadDim, int kRows>
SIRDAR_DEVICE void load_tile(uint32_t dst, const TensorMap& map, uint32_t full, int column, int row,
                             int head, int batch, uint64_t policy) {
  SIRDAR_UNROLL
  for (int c = 0; c < columns(kHeadDim) / 64; ++c) {
    ptx::cp_async_bulk_tensor_4d_load(dst + c * kRows * 128, map, full, column + 64 * c, row, head,
                                      batch, policy);
  }
}

// K and V of a key block once, then Q and dO tile by tile with their statistics. One thread; with
// lengths a warp, which clears what lies behind the end of a sequence: it belongs to others, and 0
// times a NaN is not 0.
template <BackwardConfig config>
struct Loader {
  // A tile of a tensor, and the numbers of its rows that arrive with it.
  struct Source {
    const TensorMap& map;
    int row, head, batch;
    int rows_left;         // to the end of the sequence
    const float* numbers;  // null: none
    uint32_t numbers_dst;
    uint64_t policy;
    int column = 0;  // the first
  };

  const BackwardParams& params;
  BackwardShared<config> s;
  int lane;
  uint64_t keep = ptx::createpolicy_evict_last();   // Q and dO are read by many blocks
  uint64_t once = ptx::createpolicy_evict_first();  // K and V by one
  RingPosition<config.num_stages_q> q_ring{};
  RingPosition<config.num_stages_dout> dout_ring{};
  int landed_parity = 0;

  template <int kHeadDim, int kRows>
  SIRDAR_DEVICE void clear_end(uint32_t tile, int rows_left) {
    ptx::mbarrier_wait(s.landed(), landed_parity);
    landed_parity ^= 1;
    for (int c = 0; c < columns(kHeadDim) / 64; ++c) {
      for (int i = 8 * ptx::max_of(rows_left, 0) + lane; i < 8 * kRows; i += 32) {
        ptx::store_shared(tile + c * kRows * 128 + 16 * i, ptx::Int4{0, 0, 0, 0});
      }
    }
    ptx::fence_proxy_async_shared();
    ptx::syncwarp();
  }

  template <int kHeadDim, int kRows>
  SIRDAR_DEVICE void load(uint32_t dst, uint32_t full, const Source& from) {
    constexpr int kBytes = 2 * kRows * columns(kHeadDim);
    const int number_bytes = from.numbers != nullptr ? row_bytes(config) : 0;
    const bool is_cut = config.has_lengths && from.rows_left < kRows;
    if (is_cut) {
      if (lane == 0) {
        ptx::mbarrier_arrive_expect_tx(s.landed(), kBytes);
        load_tile<kHeadDim, kRows>(dst, from.map, s.landed(), from.column, from.row, from.head,
                                   from.batch, from.policy);
      }
      ptx::syncwarp();
      clear_end<kHeadDim, kRows>(dst, from.rows_left);
    }
    if (lane == 0) {
      ptx::mbarrier_arrive_expect_tx(full, number_bytes + (is_cut ? 0 : kBytes));
      if (!is_cut) {
        load_tile<kHeadDim, kRows>(dst, from.map, full, from.column, from.row, from.head,
                                   from.batch, from.policy);
      }
      if (number_bytes > 0) {
        ptx::cp_async_bulk_load(from.numbers_dst, from.numbers, number_bytes, full);
      }
    }
    meet();
  }

  // The lanes meet after they have looked whether a stage is free, so that none looks too late.
  SIRDAR_DEVICE void meet() const {
    if constexpr (config.has_lengths) ptx::syncwarp();
  }
  SIRDAR_DEVICE void wait(uint32_t bar, int parity) const {
    ptx::mbarrier_wait(bar, parity);
    meet();
  }

  SIRDAR_DEVICE Source keys(const TensorMap& map, const KeyBlock& block) const {
    return {map,
            block.sequence.k.begin + block.first_key,
            block.head_kv,
            params.cu_seqlens_k.data != nullptr ? 0 : block.batch,
            block.sequence.k.length - block.first_key,
            nullptr,
            0,
            once};
  }
  SIRDAR_DEVICE Source queries(const TensorMap& map, const KeyBlock& block,
                               const Walk<config>& walk, const float* numbers,
                               uint32_t numbers_dst) const {
    const int row = walk.tile * config.block_m;
    return {map,
            block.sequence.q.begin + row,
            block.head_kv * params.group_size + walk.head,
            params.cu_seqlens_q.data != nullptr ? 0 : block.batch,
            block.sequence.q.length - row,
            numbers + tile_index(params, block, walk) * config.block_m,
            numbers_dst,
            keep};
  }

  SIRDAR_DEVICE void load_q(const KeyBlock& block, const Walk<config>& walk) {
    wait(s.q_empty(q_ring.stage), q_ring.parity ^ 1);
    if constexpr (config.has_mask_mod) {
      const int upper = is_wide(config) ? 0 : walk.shown(block_keys(config) / 64 - 1);
      if (lane == 0) {
        ptx::store_shared(s.told(q_ring.stage),
                          ptx::Int4{walk.tile, walk.head, walk.shown(0), upper});
      }
    }
    load<config.head_dim, config.block_m>(
        s.q(q_ring.stage), s.q_full(q_ring.stage),
        queries(params.q, block, walk, params.start_lse, s.lse(q_ring.stage)));
    q_ring.advance();
  }
  SIRDAR_DEVICE void load_dout(const KeyBlock& block, const Walk<config>& walk) {
    wait(s.dout_empty(dout_ring.stage), dout_ring.parity ^ 1);
    load<config.head_dim_v, config.block_m>(
        s.dout(dout_ring.stage), s.dout_full(dout_ring.stage),
        queries(params.dout, block, walk, params.start_delta, s.delta(dout_ring.stage)));
    dout_ring.advance();
  }
  SIRDAR_DEVICE void load_k(const KeyBlock& block) {
    load<config.head_dim, block_keys(config)>(s.k(), s.k_full(), keys(params.k, block));
    if constexpr (config.cluster_size > 1) {
      constexpr int kHalf = columns(config.head_dim) / 2;
      const int rank = rank_of<config>(), to_peer = rank == 0 ? 64 : -64;
      Source peer = keys(params.k, block);
      peer.row += to_peer;
      peer.rows_left -= to_peer;
      peer.column = rank * kHalf;
      load<kHalf, block_keys(config)>(s.peer_k(), s.k_full(), peer);
    }
  }
  SIRDAR_DEVICE void load_v(const KeyBlock& block) {
    load<config.head_dim_v, block_keys(config)>(s.v(), s.v_full(), keys(params.v, block));
  }

  // Where memory is asked which tiles there are, K is on its way by then.
  static constexpr bool kKeysComeFirst = config.has_mask_mod && !frees_keys_early(config);

  SIRDAR_DEVICE void load_free_k(const KeyBlock& block, int parity) {
    wait(s.kv_empty(), parity);
    load_k(block);
  }
  // K and V of a block that has tiles, and the first of those: scores need K and Q alone.
  SIRDAR_DEVICE void begin(const KeyBlock& block, const Walk<config>& walk, int parity) {
    if constexpr (frees_keys_early(config)) {
      load_q(block, walk);
      load_free_k(block, parity);
      load_dout(block, walk);
      wait(s.v_empty(), parity);
      load_v(block);
    } else {
      if constexpr (!kKeysComeFirst) load_free_k(block, parity);
      load_q(block, walk);
      load_v(block);
      load_dout(block, walk);
    }
  }
  SIRDAR_DEVICE void begin_without_tiles(const KeyBlock& block, int parity) {
    if constexpr (!kKeysComeFirst) load_free_k(block, parity);
    if constexpr (frees_keys_early(config)) wait(s.v_empty(), parity);
    load_v(block);
  }

  SIRDAR_DEVICE void run() {
    int parity = 1;  // of kv_empty: free at the beginning
    ItemSource<config> source{params, s, lane};
    const auto next_item = [&](int item) {
      return draws_items(config) ? source.draw() : item + item_stride<config>();
    };
    int item = draws_items(config) ? source.draw() : first_item<config>();
    while (item < params.num_items) {
      const KeyBlock block = block_of<config>(params, item);
      if (!has_keys<config>(params, block)) {
        item = next_item(item);
        continue;
      }
      if constexpr (kKeysComeFirst) load_free_k(block, parity);
      Walk<config> walk(block, params);
      if (walk.is_done()) {
        begin_without_tiles(block, parity);
      } else {
        begin(block, walk, parity);
        walk.advance();
      }
      parity ^= 1;
      for (; !walk.is_done(); walk.advance()) {
        load_q(block, walk);
        load_dout(block, walk);
      }
      item = next_item(item);  // no earlier: others may wait for what is drawn
    }
  }
};

// One thread: tiles of a bias with an entry for each pair. Either half of the keys has barriers of
// its own, so that a warpgroup that is done with its own gets the next at once.
template <BackwardConfig config>
struct BiasLoader {
  static constexpr int kBoxKeys = 128 / bias_entry_bytes(config), kBoxBytes = config.block_m * 128,
                       kBoxes = block_keys(config) / 2 / kBoxKeys;  // of a half
  const BackwardParams& params;
  BackwardShared<config> s;
  uint64_t once = ptx::createpolicy_evict_first();
  RingPosition<config.num_stages_bias> ring{};

  // Visits the boxes of a half: each its own number, and its place in the tensor.
  template <class Visit>
  SIRDAR_DEVICE void each_box(const KeyBlock& block, const Walk<config>& walk, int half,
                              Visit visit) const {
    const int head = block.head_kv * params.group_size + walk.head;
    SIRDAR_UNROLL
    for (int c = 0; c < kBoxes; ++c) {
      visit(c, block.first_key + (half * kBoxes + c) * kBoxKeys, walk.tile * config.block_m,
            params.bias.stride_head != 0 ? head : 0,
            params.bias.stride_batch != 0 ? block.batch : 0);
    }
  }
  SIRDAR_DEVICE void prefetch(const KeyBlock& block, const Walk<config>& walk, int half) const {
    each_box(block, walk, half, [&](int, int key, int row, int head, int batch) {
      ptx::prefetch_tensor_4d(params.bias_map, key, row, head, batch);
    });
  }
  SIRDAR_DEVICE void load(const KeyBlock& block, const Walk<config>& walk, int half) const {
    const uint32_t full = s.bias_full(ring.stage, half), dst = s.bias(ring.stage, half);
    ptx::mbarrier_wait(s.bias_empty(ring.stage, half), ring.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, kBoxes * kBoxBytes);
    each_box(block, walk, half, [&](int box, int key, int row, int head, int batch) {
      ptx::cp_async_bulk_tensor_4d_load(dst + box * kBoxBytes, params.bias_map, full, key, row,
                                        head, batch, once);
    });
  }

  // Memory is asked for the next tile before it is known that a stage is free.
  SIRDAR_DEVICE void run() {
    for (Items<config, false> items{params, s, 0}; !items.is_done(); items.advance()) {
      const KeyBlock block = block_of<config>(params, items.item);
      Walk<config> walk(block, params), ahead(block, params);
      for (; !walk.is_done(); walk.advance()) {
        ahead.advance();
        SIRDAR_NO_UNROLL
        for (int half = 0; half < 2; ++half) {
          if (!ahead.is_done()) prefetch(block, ahead, half);
          load(block, walk, half);
        }
        ring.advance();
      }
    }
  }
};

// One thread of each reducing warp: units of dQ from shared to global memory, added there.
template <BackwardConfig config>
struct Reducer {
  static constexpr int kUnits = num_units(config), kSlots = config.num_slots,
                       kReducers = num_reducers(config), kSums = config.num_sums,
                       kParts = num_parts(config), kTileFloats = tile_units(config) * kUnitFloats;
  const BackwardParams& params;
  BackwardShared<config> s;
  int index;       // of the reducers
  int step = 0;    // tiles so far, of all reducers
  int round = 0;   // the same, modulo those that barriers are of
  int parity = 0;  // of the barriers

  SIRDAR_DEVICE float* units_of(const KeyBlock& block, const Walk<config>& walk) const {
    return params.dq_sum + tile_index(params, block, walk) * kTileFloats +
           rank_of<config>() * (kUnits * kUnitFloats);
  }

  // Whoever is next hears of it when the sums are in memory. The turn is looked for first: it has
  // mostly come by the time that the unit has.
  SIRDAR_DEVICE void add_in_turn(const KeyBlock& block, const Walk<config>& walk, int part) {
    const long long sum = tile_index(params, block, walk) * kSums + block.index % kSums;
    const int rank = rank_of<config>();
    int* const turns = params.turns + sum * tile_parts(config) + rank * kParts + part;
    float* const units = params.dq_sum + sum * kTileFloats + rank * (kUnits * kUnitFloats);
    const int turn = turn_of<config>(params, block, walk);
    ptx::wait_until_equal(turns, turn);
    ptx::fence_proxy_async_global();
    const int end = first_unit(config, part + 1);
    SIRDAR_NO_UNROLL
    for (int u = first_unit(config, part); u < end; ++u) {
      const int slot = (step * kUnits + u) % kSlots;
      ptx::mbarrier_wait(s.unit_full(round * kUnits + u), parity);
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
      for (int u = first_unit(config, part); u < end; ++u) {
        ptx::mbarrier_arrive(s.slot_empty((step * kUnits + u) % kSlots));
      }
    }
    ptx::cp_async_bulk_wait_group<0>();
    ptx::fence_proxy_async_global();
    ptx::store_release(turns, turn + 1);
  }

  SIRDAR_DEVICE void run_in_turn() {
    for (Items<config, false> items{params, s, 0}; !items.is_done(); items.advance()) {
      const KeyBlock block = block_of<config>(params, items.item);
      for (Walk<config> walk(block, params); !walk.is_done(); walk.advance()) {
        SIRDAR_UNROLL
        for (int part = 0; part < kParts; ++part) {
          if ((round * kParts + part) % kReducers == index) add_in_turn(block, walk, part);
        }
        ++step;
        if (++round == num_rounds(config)) {
          round = 0;
          parity ^= 1;
        }
      }
    }
  }

  // A slot goes back when the unit behind it is under way.
  SIRDAR_DEVICE void run_freely() {
    RingPosition<kSlots> ring;
    int pending = -1;
    for (Items<config, false> items{params, s, 0}; !items.is_done(); items.advance()) {
      const KeyBlock block = block_of<config>(params, items.item);
      for (Walk<config> walk(block, params); !walk.is_done(); walk.advance()) {
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

// One thread: this block's dS to the other block of the cluster, which has as much room for it as
// there is for its own; whoever may fill a slot here may also fill the one there.
template <BackwardConfig config>
struct Sender {
  const BackwardParams& params;
  BackwardShared<config> s;
  RingPosition<config.num_ds> ring{};

  SIRDAR_DEVICE void run() {
    const int peer = 1 - rank_of<config>();
    for (Items<config, false> items{params, s, 0}; !items.is_done(); items.advance()) {
      const KeyBlock block = block_of<config>(params, items.item);
      for (Walk<config> walk(block, params); !walk.is_done(); walk.advance()) {
        const int at = ring.stage;
        ptx::mbarrier_wait(s.ds_full(at), ring.parity);
        ptx::mbarrier_arrive_expect_tx(s.peer_ds_full(at), ds_bytes(config));
        ptx::cp_async_bulk_copy_cluster(s.peer_ds(at), s.ds(at), ds_bytes(config),
                                        s.peer_ds_full(at), peer);
        ring.advance();
      }
    }
  }
};

}  // namespace sirdar::sm90
