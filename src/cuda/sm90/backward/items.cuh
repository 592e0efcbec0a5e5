// The items of a thread block, or of a cluster, which every role of it goes through in one order.
#pragma once

#include "cuda/sm90/backward/shared.cuh"
#include "cuda/sm90/backward/work.cuh"

namespace sirdar::sm90 {

// A thread block may draw its items in the loader, one while it is at the item before, and tells
// the others through shared memory; of a cluster the first block does, and tells the second. Only
// who runs draws, so that whoever an item waits for is at work.
template <BackwardConfig config, bool kIsWarp>
struct Items {
  const BackwardParams& params;
  BackwardShared<config> s;
  int lane, item = first_item<config>();
  int num_read = 0;

  SIRDAR_DEVICE Items(const BackwardParams& p, BackwardShared<config> shared, int lane_idx)
      : params(p), s(shared), lane(lane_idx) {
    if constexpr (draws_items(config)) advance();
  }

  SIRDAR_DEVICE bool is_done() const { return item >= params.num_items; }
  SIRDAR_DEVICE void advance() {
    if constexpr (!draws_items(config)) {
      item += item_stride<config>();
    } else {
      const int slot = num_read % kItemSlots;
      ptx::mbarrier_wait(s.item_full(slot), num_read / kItemSlots % 2);
      if (lane == 0) item = static_cast<int>(ptx::load_shared(s.item(slot)));
      if constexpr (kIsWarp) item = ptx::uniform(item);
      if (lane == 0) s.arrive_at_item(slot);
      ++num_read;
    }
  }
};

// The other end, of the loader: a thread, or with lengths a warp.
template <BackwardConfig config>
struct ItemSource {
  static constexpr bool kIsCluster = config.cluster_size > 1, kIsWarp = config.has_lengths;

  const BackwardParams& params;
  BackwardShared<config> s;
  int lane;
  RingPosition<kItemSlots> ring{};

  SIRDAR_DEVICE int draw() {
    int item;
    if (kIsCluster && rank_of<config>() == 1) {
      item = receive();
    } else {
      item = send();
    }
    ring.advance();
    return item;
  }

 private:
  SIRDAR_DEVICE int send() {
    int item = 0;
    if (lane == 0) item = ptx::atomic_add(params.items_drawn, 1);
    if constexpr (kIsWarp) item = ptx::uniform(item);
    if constexpr (kIsCluster) {
      ptx::mbarrier_wait_cluster(s.item_empty(ring.stage), ring.parity ^ 1);
    } else {
      ptx::mbarrier_wait(s.item_empty(ring.stage), ring.parity ^ 1);
    }
    if constexpr (kIsWarp) ptx::syncwarp();
    if (lane == 0) {
      const uint32_t to = s.item(ring.stage);
      ptx::store_shared(to, ptx::Int4{item, 0, 0, 0});
      if constexpr (kIsCluster) {
        ptx::fence_proxy_async_shared();
        ptx::cp_async_bulk_copy_cluster(to, to, kItemBytes, s.item_full(ring.stage), 1);
      }
      ptx::mbarrier_arrive(s.item_full(ring.stage));
    }
    if constexpr (kIsWarp) ptx::syncwarp();
    return item;
  }
  SIRDAR_DEVICE int receive() {
    if (lane == 0) ptx::mbarrier_arrive_expect_tx(s.item_full(ring.stage), kItemBytes);
    ptx::mbarrier_wait(s.item_full(ring.stage), ring.parity);
    int item = 0;
    if (lane == 0) item = static_cast<int>(ptx::load_shared(s.item(ring.stage)));
    if constexpr (kIsWarp) item = ptx::uniform(item);
    if (lane == 0) s.arrive_at_item(ring.stage);
    return item;
  }
};

}  // namespace sirdar::sm90
