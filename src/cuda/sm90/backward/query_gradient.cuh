// The warpgroup of dQ: for each query tile dS K over the block's keys, in units of 64 rows and
// columns, each of which leaves through a slot of shared memory.
#pragma once

#include "cuda/sm90/backward/items.cuh"
#include "cuda/sm90/backward/shared.cuh"
#include "cuda/sm90/backward/walk.cuh"
#include "cuda/sm90/fragment.cuh"

namespace sirdar::sm90 {

template <BackwardConfig config>
struct QueryGradient : ScaleFactor<is_scaled(config)> {  // from what dS is stored as to dS
  static constexpr int kUnits = num_units(config), kChunks = columns(config.head_dim) / 64,
                       kBarriers = num_unit_barriers(config), kKeys = block_keys(config);
  static constexpr ptx::MmaType kType = kMmaType<config.element>;

  const BackwardParams& params;
  BackwardShared<config> s;
  int thread, lane;
  float sum[32];
  RingPosition<config.num_ds> ds_ring;
  RingPosition<config.num_slots> slot_ring;
  int barrier = 0;  // of the next unit

  SIRDAR_DEVICE QueryGradient(const BackwardParams& p, BackwardShared<config> shared, int index)
      : params(p), s(shared), thread(index), lane(index % 32) {}

  // Both operands lie with their keys as rows, 16 a step.
  template <int kFirst, int kLast>
  SIRDAR_DEVICE void multiply_steps(uint64_t ds, uint64_t k) {
    ptx::wgmma_fence();
    SIRDAR_UNROLL
    for (int step = kFirst; step < kLast; ++step) {
      ptx::Wgmma<64>::template ss<kType, 1, 1>(sum, ds + step * 128, k + step * 128,
                                               step > kFirst ? 1 : 0);
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
  }

  // Of both blocks' keys, this one's columns.
  SIRDAR_DEVICE void multiply_pair(int unit) {
    const auto rows = [](uint32_t address) {
      return ptx::wgmma_descriptor(address, kKeys * 128, 1024);
    };
    const uint64_t ds = rows(s.ds(ds_ring.stage)), peer_ds = rows(s.peer_ds(ds_ring.stage));
    const int chunk = rank_of<config>() * kUnits + unit;
    const uint64_t k = rows(s.k() + chunk * (kKeys * 128));
    const uint64_t peer_k = rows(s.peer_k() + unit * (kKeys * 128));
    ptx::registers_ready(sum);
    ptx::wgmma_fence();
    SIRDAR_UNROLL
    for (int step = 0; step < kKeys / 16; ++step) {
      ptx::Wgmma<64>::template ss<kType, 1, 1>(sum, ds + step * 128, k + step * 128,
                                               step > 0 ? 1 : 0);
    }
    SIRDAR_UNROLL
    for (int step = 0; step < kKeys / 16; ++step) {
      ptx::Wgmma<64>::template ss<kType, 1, 1>(sum, peer_ds + step * 128, peer_k + step * 128, 1);
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::registers_ready(sum);
  }

  // Never both.
  SIRDAR_DEVICE bool sees_nothing(const KeyBlock& block, const Walk<config>& walk, int half) const {
    if constexpr (is_wide(config)) {
      return false;
    } else if constexpr (config.has_mask_mod) {
      return !walk.is_seen(half);
    } else {
      return is_blind<config>(params, block, walk.tile, half);
    }
  }

  // What a half of the keys does not see it has not written. Whole regions from fence to wait are
  // there for each case: ptxas adds fences where a product stands under a branch.
  SIRDAR_DEVICE void multiply(const KeyBlock& block, const Walk<config>& walk, int unit) {
    if constexpr (config.cluster_size > 1) {
      multiply_pair(unit);
      return;
    }
    const uint64_t ds = ptx::wgmma_descriptor(s.ds(ds_ring.stage) + unit / kChunks * (kKeys * 128),
                                              kKeys * 128, 1024);
    const uint64_t k =
        ptx::wgmma_descriptor(s.k() + unit % kChunks * (kKeys * 128), kKeys * 128, 1024);
    ptx::registers_ready(sum);
    if (sees_nothing(block, walk, 1)) {
      multiply_steps<0, 4>(ds, k);
    } else if (sees_nothing(block, walk, 0)) {
      multiply_steps<4, 8>(ds, k);
    } else {
      multiply_steps<0, kKeys / 16>(ds, k);
    }
    ptx::registers_ready(sum);
  }

  SIRDAR_DEVICE void stage() {
    ptx::mbarrier_wait(s.slot_empty(slot_ring.stage), slot_ring.parity ^ 1);
    const uint32_t dst = s.unit(slot_ring.stage) + thread * 16;
    SIRDAR_UNROLL
    for (int k = 0; k < 8; ++k) {
      const auto bits = [&](int i) {
        if constexpr (is_scaled(config)) {
          return static_cast<int>(ptx::bits_of(sum[4 * k + i] * this->factor));
        }
        return static_cast<int>(ptx::bits_of(sum[4 * k + i]));
      };
      ptx::store_shared(dst + k * 2048, ptx::Int4{bits(0), bits(1), bits(2), bits(3)});
    }
    ptx::fence_proxy_async_shared();
    ptx::syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(s.unit_full(barrier));
    slot_ring.advance();
    if (++barrier == kBarriers) barrier = 0;
  }

  SIRDAR_DEVICE void give_back() {
    ptx::mbarrier_arrive(s.ds_empty(ds_ring.stage));
    if constexpr (config.cluster_size > 1) {
      ptx::mbarrier_arrive_cluster(s.ds_empty(ds_ring.stage), 1 - rank_of<config>());
    }
  }

  // ---- fp16: how large dS can be

  // Of rows of V as they lie in shared memory; two threads a row where there are 64.
  SIRDAR_DEVICE int value_peak() const {
    constexpr int kShare = 128 / kKeys, kPieces = columns(config.head_dim_v) / 8;
    const int row = thread / kShare;
    float sum = 0;
    SIRDAR_NO_UNROLL
    for (int i = thread % kShare; i < kPieces; i += kShare) {
      const ptx::Int4 piece = ptx::load_shared_int4(s.v() + i / 8 * (kKeys * 128) + row * 128 +
                                                    (((i % 8) ^ (row & 7)) << 4));
      sum += dot_of_eight<config.element>(piece, piece);
    }
    if constexpr (kShare == 2) sum += ptx::shfl_xor(sum, 1);
    return peak_of(sum);
  }
  // Of the rows that see some of the keys, as prepare() wrote them.
  SIRDAR_DEVICE Peaks row_peaks(const KeyBlock& block) const {
    constexpr int kOfTile = config.block_m / kPeakRows * 2 / 4;  // pieces of 16 bytes
    Peaks peaks;
    SIRDAR_NO_UNROLL
    for (int n = 0; n < params.group_size; ++n) {
      const long long first =
          tile_index(params, block.sequence, block.head_kv * params.group_size + n, block.begin);
      const int* const pieces = params.peaks + 4 * kOfTile * first;
      SIRDAR_NO_UNROLL
      for (int i = thread; i < kOfTile * (block.end - block.begin); i += 128) {
        const ptx::Int4 two = ptx::load_written_int4(pieces + 4 * i);
        peaks.join({0, two.x, two.y});
        peaks.join({0, two.z, two.w});
      }
    }
    return peaks;
  }
  SIRDAR_DEVICE void find_peaks(const KeyBlock& block, int parity) const {
    Peaks peaks = row_peaks(block);
    ptx::mbarrier_wait(s.v_full(), parity);
    peaks.v = value_peak();
    const ptx::Int4 found{warp_peak(peaks.v), warp_peak(peaks.dout), warp_peak(peaks.delta), 0};
    if (lane == 0) ptx::store_shared(s.peaks(thread / 32), found);
    ptx::fence_proxy_async_shared();  // TMA writes V next
    ptx::syncwarp();                  // nobody reads V any more
    if (lane == 0) ptx::mbarrier_arrive(s.peaks_full());
  }

  // K has come when dS of a tile is there. Not before: without tiles nobody waits for this
  // warpgroup, which may still be at dQ of the block before when K of several more has come and
  // gone.
  SIRDAR_DEVICE void wait_for_keys(int parity) const {
    ptx::mbarrier_wait(s.ds_full(ds_ring.stage), ds_ring.parity);
    ptx::mbarrier_wait(s.k_full(), parity);
  }

  SIRDAR_DEVICE void run() {
    int parity = 0;  // of K
    for (Items<config, true> items{params, s, lane}; !items.is_done(); items.advance()) {
      const KeyBlock block = block_of<config>(params, items.item);
      if (!has_keys<config>(params, block)) continue;
      if constexpr (is_scaled(config)) find_peaks(block, parity);
      Walk<config> walk(block, params);
      if (!walk.is_done()) {
        // Where there is no tile other warps may be at the next block's already.
        if constexpr (is_scaled(config)) this->factor = inverse_of(wait_for_scale(s, parity));
        wait_for_keys(parity);
      }
      parity ^= 1;
      for (; !walk.is_done(); walk.advance()) {
        ptx::mbarrier_wait(s.ds_full(ds_ring.stage), ds_ring.parity);
        if constexpr (config.cluster_size > 1) {
          ptx::mbarrier_wait(s.peer_ds_full(ds_ring.stage), ds_ring.parity);
        }
        SIRDAR_UNROLL
        for (int unit = 0; unit < kUnits; ++unit) {
          multiply(block, walk, unit);
          if (unit == kUnits - 1 && lane == 0) give_back();
          stage();
        }
        ds_ring.advance();
      }
    }
  }
};

}  // namespace sirdar::sm90
