// Addresses in shared memory, and the barriers that hand tiles over.
#pragma once

#include "cuda/sm90/forward/config.h"
#include "cuda/sm90/forward/work.cuh"
#include "cuda/sm90/ring.cuh"
#include "ptx/all.cuh"

namespace sirdar::sm90 {

template <ForwardConfig config>
struct SharedAddresses {
  static constexpr SharedMap kMap = shared_map(config);
  static constexpr int kQ = num_q_barriers(config), kK = config.num_stages_k,
                       kV = config.num_stages_v, kBias = config.num_stages_bias;
  uint32_t base;

  SIRDAR_DEVICE uint32_t q(int buffer) const { return base + kMap.q + buffer * q_bytes(config); }
  SIRDAR_DEVICE uint32_t k(int stage) const { return base + kMap.k + stage * k_bytes(config); }
  SIRDAR_DEVICE uint32_t v(int stage) const { return base + kMap.v + stage * v_bytes(config); }
  SIRDAR_DEVICE uint32_t bias(int warpgroup, int stage) const {
    return base + kMap.bias + (warpgroup * kBias + stage) * bias_bytes(config);
  }
  SIRDAR_DEVICE uint32_t info(int slot) const {
    return base + kMap.info + slot * info_bytes(config);
  }
  SIRDAR_DEVICE uint32_t block_info(int stage) const {
    return base + kMap.block_info + stage * kBlockInfoBytes;
  }

  SIRDAR_DEVICE uint32_t bar(int index) const { return base + kMap.barriers + 8 * index; }
  SIRDAR_DEVICE uint32_t q_full(int i) const { return bar(i); }
  SIRDAR_DEVICE uint32_t q_empty(int i) const { return bar(kQ + i); }
  SIRDAR_DEVICE uint32_t k_full(int i) const { return bar(2 * kQ + i); }
  SIRDAR_DEVICE uint32_t k_empty(int i) const { return bar(2 * kQ + kK + i); }
  SIRDAR_DEVICE uint32_t v_full(int i) const { return bar(2 * kQ + 2 * kK + i); }
  SIRDAR_DEVICE uint32_t v_empty(int i) const { return bar(2 * kQ + 2 * kK + kV + i); }
  // Where the bytes of a V tile arrive whose end the producer clears; only with has_lengths.
  SIRDAR_DEVICE uint32_t v_landed() const { return bar(num_barriers(config) - 1); }
  // A word of a consumer warp of the block; where rows are handed over.
  SIRDAR_DEVICE uint32_t lost(int warp) const { return base + kMap.lost + 4 * warp; }
  SIRDAR_DEVICE uint32_t lost_full() const {
    return bar(2 * (kQ + kK + kV + kBias * config.num_consumers));
  }
  SIRDAR_DEVICE uint32_t lost_empty() const { return lost_full() + 8; }
  // Where a warpgroup has left its output: an address, or one of the two below.
  SIRDAR_DEVICE uint32_t out_place(int warpgroup) const {
    return base + kMap.out_places + 4 * warpgroup;
  }
  SIRDAR_DEVICE uint32_t out_full(int warpgroup) const {
    constexpr int kLost = hands_rows_over(config) ? 1 : 0;
    return bar(2 * (kQ + kK + kV + kBias * config.num_consumers + kLost + warpgroup));
  }
  SIRDAR_DEVICE uint32_t out_empty(int warpgroup) const { return out_full(warpgroup) + 8; }
  SIRDAR_DEVICE uint32_t bias_full(int warpgroup, int i) const {
    return bar(2 * (kQ + kK + kV + warpgroup * kBias + i));
  }
  SIRDAR_DEVICE uint32_t bias_empty(int warpgroup, int i) const {
    return bar(2 * (kQ + kK + kV + warpgroup * kBias + i) + 1);
  }
};

// It has left from registers, or there is none; no item is left.
inline constexpr uint32_t kStoredOut = 0, kNoMoreOut = 1;

// What a consumer warp says of its rows of an item when they are stored.
enum class Handed : uint32_t { finite, lost, no_more_items };

// One thread. Full: the producer's arrival and its bytes. Empty: one arrival per consumer warp, of
// both blocks in a cluster; of Q that O leaves through, warpgroup by warpgroup, one per warpgroup;
// of a bias, which each warpgroup has its own of, one per warp of it. Lost: the other way round.
template <ForwardConfig config>
SIRDAR_DEVICE void init_barriers(const SharedAddresses<config>& s) {
  for (int i = 0; i < num_q_barriers(config); ++i) {
    ptx::mbarrier_init(s.q_full(i), 1);
    ptx::mbarrier_init(s.q_empty(i), config.num_q_buffers > 1 ? config.num_consumers : 4);
  }
  for (int i = 0; i < config.num_stages_k; ++i) {
    ptx::mbarrier_init(s.k_full(i), 1);
    ptx::mbarrier_init(s.k_empty(i), 4 * config.num_consumers * config.cluster_size);
  }
  for (int i = 0; i < config.num_stages_v; ++i) {
    ptx::mbarrier_init(s.v_full(i), 1);
    ptx::mbarrier_init(s.v_empty(i), 4 * config.num_consumers * config.cluster_size);
  }
  for (int warpgroup = 0; warpgroup < config.num_consumers; ++warpgroup) {
    for (int i = 0; i < config.num_stages_bias; ++i) {
      ptx::mbarrier_init(s.bias_full(warpgroup, i), 1);
      ptx::mbarrier_init(s.bias_empty(warpgroup, i), 128);
    }
  }
  if constexpr (hands_rows_over(config)) {
    ptx::mbarrier_init(s.lost_full(), (sends_out(config) ? 1 : 4) * config.num_consumers);
    ptx::mbarrier_init(s.lost_empty(), 32);
    for (int warp = 0; warp < 4 * config.num_consumers; ++warp) {
      ptx::store_shared(s.lost(warp), static_cast<uint32_t>(Handed::finite));
    }
  }
  if constexpr (sends_out(config)) {
    for (int warpgroup = 0; warpgroup < config.num_consumers; ++warpgroup) {
      ptx::mbarrier_init(s.out_full(warpgroup), 4);
      ptx::mbarrier_init(s.out_empty(warpgroup), 32);
    }
  }
  if constexpr (config.has_lengths) ptx::mbarrier_init(s.v_landed(), 1);
  ptx::fence_mbarrier_init();
}

// The item as it is handed to the consumers, beside Q. One thread writes, a warp reads.
template <ForwardConfig config>
SIRDAR_DEVICE void write_item(uint32_t info, const WorkItem& item) {
  ptx::store_shared(info, {item.block, item.batch, item.head, item.num_blocks});
  ptx::store_shared(info + 16, {item.first_block, item.q_begin, item.seqlen_q, item.seqlen_k});
  if constexpr (has_parts(config)) ptx::store_shared(info + 32, {item.split, 0, 0, 0});
}
// What is the same for all items is not read: it needs no registers through the loop.
template <ForwardConfig config>
SIRDAR_DEVICE WorkItem read_item(const ForwardParams& params, uint32_t info) {
  const ptx::Int4 a = ptx::load_shared_int4(info), b = ptx::load_shared_int4(info + 16);
  WorkItem item{ptx::uniform(a.x),
                ptx::uniform(a.y),
                ptx::uniform(a.z),
                ptx::uniform(a.w),
                0,
                0,
                params.seqlen_q,
                params.seqlen_k,
                0};
  if constexpr (has_parts(config)) item.split = ptx::uniform(ptx::load_shared_int4(info + 32).x);
  if constexpr (config.mask == MaskForm::interval || config.has_mask_mod || has_parts(config)) {
    item.first_block = ptx::uniform(b.x);
  }
  if constexpr (config.has_lengths) {
    item.q_begin = ptx::uniform(b.y);
    item.seqlen_q = ptx::uniform(b.z);
    item.seqlen_k = ptx::uniform(b.w);
  }
  return item;
}

// A key block in the ring, beside K, where a mask of the caller's decides which are walked.
SIRDAR_DEVICE void write_block(uint32_t info, const SeenBlock& block) {
  ptx::store_shared(info, {block.index, block.tile, 0, 0});
}
SIRDAR_DEVICE SeenBlock read_block(uint32_t info) {
  const ptx::Int4 words = ptx::load_shared_int4(info);
  ptx::syncwarp();  // one lane gives the stage back for all that have read it
  return {ptx::uniform(words.x), ptx::uniform(words.y)};
}

}  // namespace sirdar::sm90
