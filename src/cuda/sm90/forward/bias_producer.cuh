// The second warp of the producer warpgroup, where a bias comes by TMA: a tile of each warpgroup's
// rows and a key block's keys, for every block that is walked. It has a ring of its own, so that
// neither K and V nor the bias wait for each other's free stages.
#pragma once

#include "cuda/sm90/forward/bias.cuh"
#include "cuda/sm90/forward/cover.cuh"
#include "cuda/sm90/forward/shared.cuh"

namespace sirdar::sm90 {

template <ForwardConfig config>
struct BiasProducer {
  static constexpr int kN = config.block_n;
  const ForwardParams& params;
  SharedAddresses<config> s;
  int lane;
  uint64_t once;  // every entry is read by one block
  RingPosition<config.num_stages_bias> ring;

  SIRDAR_DEVICE BiasProducer(const ForwardParams& p, SharedAddresses<config> shared, int lane_idx)
      : params(p), s(shared), lane(lane_idx), once(ptx::createpolicy_evict_first()) {}

  // The lanes meet after they have looked whether a stage is free (producer.cuh).
  SIRDAR_DEVICE void load(const WorkItem& item, int block, int warpgroup) {
    const uint32_t full = s.bias_full(warpgroup, ring.stage);
    ptx::mbarrier_wait(s.bias_empty(warpgroup, ring.stage), ring.parity ^ 1);
    ptx::syncwarp();
    if (lane == 0) {
      ptx::mbarrier_arrive_expect_tx(full, bias_bytes(config));
      SIRDAR_UNROLL
      for (int c = 0; c < kN / 64; ++c) {
        ptx::cp_async_bulk_tensor_4d_load(s.bias(warpgroup, ring.stage) + c * 64 * 128,
                                          params.bias_map, full, block * kN + 64 * c,
                                          item.block * block_m(config) + 64 * warpgroup,
                                          params.bias.stride_head != 0 ? item.head : 0,
                                          params.bias.stride_batch != 0 ? item.batch : 0, once);
      }
    }
    ptx::syncwarp();
  }
  // Brings the lines of a block from memory nearer.
  SIRDAR_DEVICE void prefetch(const WorkItem& item, int block) const {
    if ((block + 1) * kN > item.seqlen_k) return;
    SIRDAR_NO_UNROLL
    for (int row = lane; row < block_m(config); row += 32) {
      for (int half = 0; half < 2; ++half) {
        BiasTile<config.bias, kN>::prefetch(params.bias, item, item.head,
                                            item.block * block_m(config) + row, block * kN, half);
      }
    }
  }

  // The block to the left of `block` that is walked next; none: one before the item's first.
  SIRDAR_DEVICE int block_before(CoverCursor& cursor, int block) const {
    if constexpr (!config.has_mask_mod) return block - 1;
    return cursor.next(block - 1);
  }

  SIRDAR_DEVICE void run() {
    RingPosition<config.num_q_buffers> q_ring;
    for (int slot = 0;; slot = slot + 1 == num_items_ahead(config) ? 0 : slot + 1) {
      ptx::mbarrier_wait(s.q_full(q_ring.stage), q_ring.parity);
      const WorkItem item = read_item<config>(params, s.info(slot));
      ptx::syncwarp();
      if (item.block < 0) return;
      q_ring.advance();
      CoverCursor cursor(params, item);
      int block = item.first_block + item.num_blocks - 1;
      while (block >= item.first_block) {
        for (int warpgroup = 0; warpgroup < config.num_consumers; ++warpgroup) {
          load(item, block, warpgroup);
        }
        ring.advance();
        block = block_before(cursor, block);
        if (block >= item.first_block) prefetch(item, block);
      }
    }
  }
};

}  // namespace sirdar::sm90
