// Takes outputs away that consumers have left in stages of V: a warp of the producer warpgroup for
// each of their warpgroups. A multiprocessor stores some 25 bytes a cycle, so that whoever waits
// for 32 KiB of it waits for longer than a key block takes.
#pragma once

#include "cuda/sm90/forward/shared.cuh"

namespace sirdar::sm90 {

template <ForwardConfig config>
struct Storer {
  const ForwardParams& params;
  SharedAddresses<config> s;
  int warpgroup, lane;

  SIRDAR_DEVICE void send(const WorkItem& item, uint32_t tile) const {
    const int first = item.block * block_m(config) + 64 * warpgroup;
    const int row = item.q_begin + query_row<config>(first);
    const int batch = config.has_lengths && params.cu_seqlens_q.data != nullptr ? 0 : item.batch;
    SIRDAR_UNROLL
    for (int c = 0; c < columns(config.head_dim_v) / 64; ++c) {
      if constexpr (config.num_packed_heads == 1) {
        ptx::cp_async_bulk_tensor_4d_store(params.out, tile + c * 8192, 64 * c, row, item.head,
                                           batch);
      } else {
        ptx::cp_async_bulk_tensor_5d_store(params.out, tile + c * 8192, 64 * c,
                                           place_in_pack<config>(first), row, item.head, batch);
      }
    }
    ptx::cp_async_bulk_commit_group();
  }

  SIRDAR_DEVICE void run() const {
    int parity = 0;
    for (int slot = 0;; slot = slot + 1 == num_items_ahead(config) ? 0 : slot + 1) {
      ptx::mbarrier_wait(s.out_full(warpgroup), parity);
      ptx::syncwarp();
      const uint32_t tile = ptx::load_shared(s.out_place(warpgroup));
      if (tile != kStoredOut && tile != kNoMoreOut) {
        const WorkItem item = read_item<config>(params, s.info(slot));
        if (lane == 0) {
          send(item, tile);
          ptx::cp_async_bulk_wait_group_read<0>();
        }
      }
      ptx::mbarrier_arrive(
          s.out_empty(warpgroup));  // by every lane, since each has read where it is
      if constexpr (hands_rows_over(config)) {
        if (lane == 0) {
          ptx::cp_async_bulk_wait_group<0>();  // rows are in memory
          ptx::mbarrier_arrive(s.lost_full());
        }
      }
      if (tile == kNoMoreOut) return;
      parity ^= 1;
    }
  }
};

}  // namespace sirdar::sm90
