// A warpgroup of dK and dV: 64 keys, whose rows it keeps as accumulators while it walks the query
// tiles. Per tile S^T = K Q^T, P^T = exp2, dP^T = V dO^T in the registers of S^T, dV += P^T dO,
// dS^T = P^T (dP^T - delta) to the warpgroup of dQ and dK += dS^T Q.
#pragma once

#include "cuda/sm90/backward/shared.cuh"
#include "cuda/sm90/backward/work.cuh"
#include "cuda/sm90/fragment.cuh"

namespace sirdar::sm90 {

template <BackwardConfig config>
struct KeyGradient {
  static constexpr int kM = config.block_m;
  static constexpr int kWidth = round_up(config.head_dim, 16),
                       kWidthV = round_up(config.head_dim_v, 16);
  static constexpr ptx::MmaType kType = kMmaType<config.element>;

  // Where a tile is: its stages, and the slot of its dS.
  struct Place {
    RingPosition<config.num_stages_q> q;
    RingPosition<config.num_stages_dout> dout;
    RingPosition<kNumDs> ds;

    SIRDAR_DEVICE void advance() {
      q.advance();
      dout.advance();
      ds.advance();
    }
  };

  const BackwardParams& params;
  BackwardShared<config> s;
  int half, warp, lane;                        // which 64 keys; warp of the warpgroup
  float score[kM / 2];                         // S^T, then dP^T
  uint32_t weights[kM / 4], products[kM / 4];  // P^T and dS^T in 16 bits
  float dk[kWidth / 2], dv[kWidthV / 2];
  Place next;  // of the tile that the walk stands at

  SIRDAR_DEVICE KeyGradient(const BackwardParams& p, BackwardShared<config> shared, int which,
                            int thread)
      : params(p), s(shared), half(which), warp(thread / 32), lane(thread % 32) {}

  // ---- products

  // Accumulators that begin with a number of their column, a query row: -lse / scale, -delta.
  SIRDAR_DEVICE void start_columns(uint32_t values) {
    SIRDAR_UNROLL
    for (int i = 0; i < kM / 8; ++i) {
      const ptx::Float2 pair = ptx::load_shared_float2(values + 8 * (lane % 4) + 32 * i);
      score[4 * i] = score[4 * i + 2] = pair.x;
      score[4 * i + 1] = score[4 * i + 3] = pair.y;
    }
    ptx::registers_ready(score);
  }

  // score += keys' rows of `a` times rows of `b`, over `kDepth` columns of both.
  template <int kDepth>
  SIRDAR_DEVICE void multiply_rows(uint32_t a, uint32_t b) {
    const uint64_t keys = ptx::wgmma_descriptor(a + half * 8192, 16, 1024);
    const uint64_t queries = ptx::wgmma_descriptor(b, 16, 1024);
    ptx::wgmma_fence();
    SIRDAR_UNROLL
    for (int step = 0; step < kDepth / 16; ++step) {
      ptx::Wgmma<kM>::template ss<kType>(score,
                                         keys + (step / 4) * (kBlockKeys * 8) + (step % 4) * 2,
                                         queries + (step / 4) * (kM * 8) + (step % 4) * 2, 1);
    }
    ptx::wgmma_commit_group();
  }
  // sum += weights times the tile at `rows`, whose rows are queries.
  template <int kColumns>
  SIRDAR_DEVICE void multiply_tile(float (&sum)[kColumns / 2], const uint32_t (&a)[kM / 4],
                                   uint32_t rows) {
    const uint64_t b = ptx::wgmma_descriptor(rows, kM * 128, 1024);
    ptx::wgmma_fence();
    SIRDAR_UNROLL
    for (int step = 0; step < kM / 16; ++step) {
      ptx::Wgmma<kColumns>::template rs<kType, 1>(sum, a + 4 * step, b + step * 128, 1);
    }
    ptx::wgmma_commit_group();
  }

  SIRDAR_DEVICE void issue_scores(const Place& place) {
    ptx::mbarrier_wait(s.q_full(place.q.stage), place.q.parity);
    start_columns(s.lse(place.q.stage));
    multiply_rows<kWidth>(s.k(), s.q(place.q.stage));
  }
  SIRDAR_DEVICE void issue_dp_and_dv(const Place& place) {
    ptx::mbarrier_wait(s.dout_full(place.dout.stage), place.dout.parity);
    start_columns(s.delta(place.dout.stage));
    multiply_rows<kWidthV>(s.v(), s.dout(place.dout.stage));
    multiply_tile<kWidthV>(dv, weights, s.dout(place.dout.stage));
  }
  SIRDAR_DEVICE void issue_dk(const Place& place) {
    multiply_tile<kWidth>(dk, products, s.q(place.q.stage));
  }
  SIRDAR_DEVICE void wait_products() {
    ptx::wgmma_wait_group<0>();
    ptx::registers_ready(score);
  }

  // To whoever fills or reads it next, one arrival a warp.
  SIRDAR_DEVICE void arrive(uint32_t bar) {
    ptx::syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(bar);
  }

  // ---- between products

  // Scores that are not seen become ones whose weight is 0.
  SIRDAR_DEVICE void hide(const KeyBlock& block, int tile) {
    const int first_key = block.first_key() + 64 * half, first_row = tile * kM;
    const BackwardBounds<config> bounds(params, params.seqlen_q, params.seqlen_k);
    const bool is_whole =
        bounds.hi(first_row) >= first_key + 64 && bounds.lo(first_row + kM - 1) <= first_key;
    if (is_whole) return;
    SIRDAR_UNROLL
    for (int lower = 0; lower < 2; ++lower) {
      const int key = first_key + 16 * warp + lane / 4 + 8 * lower;
      const int origin = first_row + 2 * (lane % 4);
      const bool exists = key < params.seqlen_k;
      const int begin = exists ? bounds.row_begin(key) - origin : kM;
      const int end = exists ? bounds.row_end(key) - origin : 0;
      SIRDAR_UNROLL
      for (int i = 0; i < kM / 2; ++i) {
        if (is_lower_row(i) != (lower == 1)) continue;
        const int column = column_of(i);
        if (column < begin || column >= end) score[i] = params.hidden;
      }
    }
  }

  SIRDAR_DEVICE void take_weights(const KeyBlock& block, int tile) {
    hide(block, tile);
    SIRDAR_UNROLL
    for (int i = 0; i < kM / 4; ++i) {
      weights[i] = pack<config.element>(ptx::exp2_approx(score[2 * i] * params.scale_log2),
                                        ptx::exp2_approx(score[2 * i + 1] * params.scale_log2));
    }
  }

  SIRDAR_DEVICE uint32_t product(int i) const {
    constexpr bool kIsBf16 = config.element == Element::bf16;
    const uint32_t pair = weights[i];
    if constexpr (config.packs_products) {
      const uint32_t dp = pack<config.element>(score[2 * i], score[2 * i + 1]);
      return kIsBf16 ? ptx::multiply_bf16x2(pair, dp) : ptx::multiply_f16x2(pair, dp);
    }
    // The weights as they were rounded: an fp32 copy has no registers.
    const FloatPair weight = unpack<config.element>(pair);
    return pack<config.element>(weight.low * score[2 * i], weight.high * score[2 * i + 1]);
  }

  // dS^T of this warp's keys: kept for dK, and to shared memory as [64 queries][key][query].
  SIRDAR_DEVICE void hand_over_products(const Place& place) {
    SIRDAR_UNROLL
    for (int i = 0; i < kM / 4; ++i) products[i] = product(i);
    ptx::mbarrier_wait(s.ds_empty(place.ds.stage), place.ds.parity ^ 1);
    const int row = 64 * half + 16 * warp + (lane & 15);
    SIRDAR_UNROLL
    for (int j = 0; j < kM / 16; ++j) {
      const uint32_t dst = s.ds(place.ds.stage) + (j / 4) * (kBlockKeys * 128) + row * 128 +
                           ((((j & 3) * 2 + (lane >> 4)) ^ (lane & 7)) << 4);
      ptx::stmatrix_x4(dst, products[4 * j], products[4 * j + 1], products[4 * j + 2],
                       products[4 * j + 3]);
    }
    ptx::fence_proxy_async_shared();
    arrive(s.ds_full(place.ds.stage));
  }

  // ---- a key block

  // Tiles of which these keys see nothing are given back as they are.
  SIRDAR_DEVICE void skip_blind(const KeyBlock& block, TileWalk& walk) {
    while (!walk.is_done() && is_blind<config>(params, block, walk.tile, half)) {
      ptx::mbarrier_wait(s.q_full(next.q.stage), next.q.parity);
      arrive(s.q_empty(next.q.stage));
      ptx::mbarrier_wait(s.dout_full(next.dout.stage), next.dout.parity);
      arrive(s.dout_empty(next.dout.stage));
      ptx::mbarrier_wait(s.ds_empty(next.ds.stage), next.ds.parity ^ 1);
      arrive(s.ds_full(next.ds.stage));
      next.advance();
      walk.advance();
    }
  }

  // From the walk's tile to the next blind one or the end. Scores of a tile are issued with the dK
  // of the one before.
  SIRDAR_DEVICE void walk_seen(const KeyBlock& block, TileWalk& walk) {
    issue_scores(next);
    wait_products();
    take_weights(block, walk.tile);
    Place place = next;
    SIRDAR_NO_UNROLL
    while (true) {
      next.advance();
      walk.advance();
      issue_dp_and_dv(place);
      wait_products();
      ptx::registers_ready(dv);
      arrive(s.dout_empty(place.dout.stage));
      hand_over_products(place);
      if (walk.is_done() || is_blind<config>(params, block, walk.tile, half)) break;
      issue_scores(next);
      issue_dk(place);
      wait_products();
      ptx::registers_ready(dk);
      arrive(s.q_empty(place.q.stage));
      take_weights(block, walk.tile);
      place = next;
    }
    issue_dk(place);
    ptx::wgmma_wait_group<0>();
    ptx::registers_ready(dk);
    arrive(s.q_empty(place.q.stage));
  }

  // Rows leave through those of K or V that only this warpgroup still could read.
  template <int kColumns>
  SIRDAR_DEVICE void store(const float (&sum)[kColumns / 2], float factor, uint32_t tile,
                           const TensorMap& map, const KeyBlock& block) {
    const int row = 64 * half + 16 * warp + (lane & 15);
    const auto word = [&](int i) {
      return pack<config.element>(sum[2 * i] * factor, sum[2 * i + 1] * factor);
    };
    SIRDAR_UNROLL
    for (int j = 0; j < kColumns / 16; ++j) {
      const uint32_t dst = tile + (j / 4) * (kBlockKeys * 128) + row * 128 +
                           ((((j & 3) * 2 + (lane >> 4)) ^ (lane & 7)) << 4);
      ptx::stmatrix_x4(dst, word(4 * j), word(4 * j + 1), word(4 * j + 2), word(4 * j + 3));
    }
    ptx::fence_proxy_async_shared();
    ptx::barrier_sync(1 + half, 128);
    const int first_key = block.first_key() + 64 * half;
    if (warp == 0 && lane == 0) {
      SIRDAR_UNROLL
      for (int c = 0; c < columns(kColumns) / 64; ++c) {
        ptx::cp_async_bulk_tensor_4d_store(map, tile + c * (kBlockKeys * 128) + half * 8192, 64 * c,
                                           first_key, block.head_kv, block.batch);
      }
      ptx::cp_async_bulk_commit_group();
    }
  }

  SIRDAR_DEVICE void run() {
    int parity = 0;  // of K and V
    for (int item = ptx::block_idx_x(); item < params.num_items; item += ptx::grid_dim_x()) {
      const KeyBlock block = block_of<config>(params, item);
      SIRDAR_UNROLL
      for (float& value : dk) value = 0;
      SIRDAR_UNROLL
      for (float& value : dv) value = 0;
      ptx::mbarrier_wait(s.k_full(), parity);
      ptx::mbarrier_wait(s.v_full(), parity);
      parity ^= 1;
      TileWalk walk(block, params.group_size);
      const bool has_tiles = !walk.is_done();
      while (true) {
        skip_blind(block, walk);
        if (walk.is_done()) break;
        walk_seen(block, walk);
      }
      ptx::barrier_sync(1 + half, 128);  // every warp is done with K and V
      store<kWidthV>(dv, 1.0f, s.v(), params.dv, block);
      if (has_tiles) {  // dQ has read K for the last time
        const int last = (next.ds.stage + kNumDs - 1) % kNumDs;
        ptx::mbarrier_wait(s.ds_empty(last),
                           next.ds.stage == 0 ? next.ds.parity ^ 1 : next.ds.parity);
      }
      store<kWidth>(dk, params.scale, s.k(), params.dk, block);
      if (warp == 0 && lane == 0) {
        ptx::cp_async_bulk_wait_group_read<0>();
        ptx::mbarrier_arrive(s.kv_empty());
      }
      ptx::syncwarp();
    }
  }
};

}  // namespace sirdar::sm90
