// Addresses in shared memory, and the barriers that hand tiles over.
#pragma once

#include "cuda/sm90/backward/config.h"
#include "cuda/sm90/backward/peaks.cuh"
#include "cuda/sm90/ring.cuh"
#include "ptx/all.cuh"

namespace sirdar::sm90 {

template <BackwardConfig config>
struct BackwardShared {
  static constexpr BackwardMap kMap = shared_map(config);
  static constexpr int kQ = config.num_stages_q, kO = config.num_stages_dout,
                       kUnits = num_unit_barriers(config);
  uint32_t base;

  SIRDAR_DEVICE uint32_t k() const { return base + kMap.k; }
  SIRDAR_DEVICE uint32_t v() const { return base + kMap.v; }
  SIRDAR_DEVICE uint32_t q(int stage) const { return base + kMap.q + stage * q_bytes(config); }
  SIRDAR_DEVICE uint32_t dout(int stage) const {
    return base + kMap.dout + stage * dout_bytes(config);
  }
  SIRDAR_DEVICE uint32_t ds(int slot) const { return base + kMap.ds + slot * ds_bytes(config); }
  SIRDAR_DEVICE uint32_t peer_k() const { return base + kMap.peer_k; }
  SIRDAR_DEVICE uint32_t peer_ds(int slot) const {
    return base + kMap.peer_ds + slot * peer_ds_bytes(config);
  }
  SIRDAR_DEVICE uint32_t weights(int slot) const {
    return base + kMap.weights + slot * weights_bytes(config);
  }
  SIRDAR_DEVICE uint32_t unit(int slot) const { return base + kMap.slots + slot * kUnitBytes; }
  SIRDAR_DEVICE uint32_t bias(int stage, int half) const {
    return base + kMap.bias + (2 * stage + half) * (bias_bytes(config) / 2);
  }
  SIRDAR_DEVICE uint32_t lse(int stage) const {
    return base + kMap.lse + stage * row_bytes(config);
  }
  SIRDAR_DEVICE uint32_t delta(int stage) const {
    return base + kMap.delta + stage * row_bytes(config);
  }

  SIRDAR_DEVICE uint32_t told(int stage) const { return base + kMap.told + 16 * stage; }
  SIRDAR_DEVICE uint32_t peaks(int warp) const { return base + kMap.peaks + 16 * warp; }

  SIRDAR_DEVICE uint32_t item(int slot) const { return base + kMap.items + kItemBytes * slot; }

  SIRDAR_DEVICE uint32_t bar(int index) const { return base + kMap.barriers + 8 * index; }
  SIRDAR_DEVICE uint32_t k_full() const { return bar(0); }
  SIRDAR_DEVICE uint32_t v_full() const { return bar(1); }
  SIRDAR_DEVICE uint32_t kv_empty() const { return bar(2); }  // of K alone where it is early
  SIRDAR_DEVICE uint32_t q_full(int i) const { return bar(3 + i); }
  SIRDAR_DEVICE uint32_t q_empty(int i) const { return bar(3 + kQ + i); }
  SIRDAR_DEVICE uint32_t dout_full(int i) const { return bar(3 + 2 * kQ + i); }
  SIRDAR_DEVICE uint32_t dout_empty(int i) const { return bar(3 + 2 * kQ + kO + i); }
  static constexpr int kDs = config.num_ds, kFirstDs = 3 + 2 * (kQ + kO),
                       kFirstUnit = kFirstDs + (is_wide(config) ? 4 : 2) * kDs;
  SIRDAR_DEVICE uint32_t ds_full(int i) const { return bar(kFirstDs + i); }
  SIRDAR_DEVICE uint32_t ds_empty(int i) const { return bar(kFirstDs + kDs + i); }
  // Only where P travels.
  SIRDAR_DEVICE uint32_t weights_full(int i) const { return bar(kFirstDs + 2 * kDs + i); }
  SIRDAR_DEVICE uint32_t weights_empty(int i) const { return bar(kFirstDs + 3 * kDs + i); }
  SIRDAR_DEVICE uint32_t unit_full(int i) const { return bar(kFirstUnit + i); }
  SIRDAR_DEVICE uint32_t slot_empty(int i) const { return bar(kFirstUnit + kUnits + i); }
  // Where the bytes of a tile arrive whose end the loader clears; only with has_lengths.
  static constexpr int kLanded = kFirstUnit + kUnits + config.num_slots,
                       kPeaks = kLanded + (config.has_lengths ? 1 : 0),
                       kFirstPeer = kPeaks + (is_scaled(config) ? 1 : 0),
                       kFirstBias = kFirstPeer + (config.cluster_size > 1 ? config.num_ds : 0);
  SIRDAR_DEVICE uint32_t landed() const { return bar(kLanded); }
  // Only with fp16.
  SIRDAR_DEVICE uint32_t peaks_full() const { return bar(kPeaks); }
  // Only in a cluster.
  SIRDAR_DEVICE uint32_t peer_ds_full(int i) const { return bar(kFirstPeer + i); }
  // Only where TMA brings a bias: of either half of the keys.
  SIRDAR_DEVICE uint32_t bias_full(int i, int half) const { return bar(kFirstBias + 4 * i + half); }
  SIRDAR_DEVICE uint32_t bias_empty(int i, int half) const {
    return bar(kFirstBias + 4 * i + 2 + half);
  }
  // Only where items are drawn.
  static constexpr int kFirstItem = kFirstBias + 4 * config.num_stages_bias;
  SIRDAR_DEVICE uint32_t item_full(int i) const { return bar(kFirstItem + i); }
  SIRDAR_DEVICE uint32_t item_empty(int i) const { return bar(kFirstItem + kItemSlots + i); }
  SIRDAR_DEVICE void arrive_at_item(int i) const {
    if constexpr (config.cluster_size > 1) {
      ptx::fence_proxy_async_shared();                 // the next one is copied there
      ptx::mbarrier_arrive_cluster(item_empty(i), 0);  // who draws
    } else {
      ptx::mbarrier_arrive(item_empty(i));
    }
  }
  SIRDAR_DEVICE uint32_t v_empty() const {
    return bar(kFirstItem + (draws_items(config) ? 2 * kItemSlots : 0));
  }
};

// What the four warps that look for them found. One phase of peaks_full a key block.
template <BackwardConfig config>
SIRDAR_DEVICE float wait_for_scale(const BackwardShared<config>& s, int parity) {
  ptx::mbarrier_wait(s.peaks_full(), parity);
  Peaks peaks;
  SIRDAR_UNROLL
  for (int warp = 0; warp < 4; ++warp) {
    const ptx::Int4 found = ptx::load_shared_int4(s.peaks(warp));
    peaks.join({found.x, found.y, found.z});
  }
  return product_scale(peaks);
}

// One thread. README.md says who arrives.
template <BackwardConfig config>
SIRDAR_DEVICE void init_barriers(const BackwardShared<config>& s) {
  ptx::mbarrier_init(s.k_full(), config.cluster_size);
  ptx::mbarrier_init(s.v_full(), 1);
  ptx::mbarrier_init(s.kv_empty(), 2);
  for (int i = 0; i < config.num_stages_q; ++i) {
    ptx::mbarrier_init(s.q_full(i), 1);
    ptx::mbarrier_init(s.q_empty(i), 8 * 32);
  }
  for (int i = 0; i < config.num_stages_dout; ++i) {
    ptx::mbarrier_init(s.dout_full(i), 1);
    ptx::mbarrier_init(s.dout_empty(i), 8 * 32);
  }
  for (int i = 0; i < config.num_ds; ++i) {
    ptx::mbarrier_init(s.ds_full(i), is_wide(config) ? 4 : 8);
    ptx::mbarrier_init(s.ds_empty(i), 4 * config.cluster_size);
    if constexpr (config.cluster_size > 1) ptx::mbarrier_init(s.peer_ds_full(i), 1);
    if constexpr (is_wide(config)) {
      ptx::mbarrier_init(s.weights_full(i), 4 * 32);
      ptx::mbarrier_init(s.weights_empty(i), 4 * 32);
    }
  }
  for (int i = 0; i < config.num_stages_bias; ++i) {
    for (int half = 0; half < 2; ++half) {
      ptx::mbarrier_init(s.bias_full(i, half), 1);
      ptx::mbarrier_init(s.bias_empty(i, half), 4 * 32);
    }
  }
  for (int i = 0; i < num_unit_barriers(config); ++i) ptx::mbarrier_init(s.unit_full(i), 4);
  for (int i = 0; i < config.num_slots; ++i) ptx::mbarrier_init(s.slot_empty(i), 1);
  if constexpr (config.has_lengths) ptx::mbarrier_init(s.landed(), 1);
  if constexpr (is_scaled(config)) ptx::mbarrier_init(s.peaks_full(), 4);
  if constexpr (draws_items(config)) {
    for (int i = 0; i < kItemSlots; ++i) {
      ptx::mbarrier_init(s.item_full(i), 1);
      ptx::mbarrier_init(s.item_empty(i), item_readers(config));
    }
  }
  if constexpr (frees_keys_early(config)) ptx::mbarrier_init(s.v_empty(), 2);
  ptx::fence_mbarrier_init();
}

}  // namespace sirdar::sm90
