// 64 keys of a warpgroup: scores of a query tile as their rows, and the products that all of the
// main warpgroups are made of.
#pragma once

#include "cuda/sm90/backward/items.cuh"
#include "cuda/sm90/backward/lost.cuh"
#include "cuda/sm90/backward/modify.cuh"
#include "cuda/sm90/backward/remainders.cuh"
#include "cuda/sm90/backward/shared.cuh"
#include "cuda/sm90/backward/walk.cuh"
#include "cuda/sm90/fragment.cuh"

namespace sirdar::sm90 {

template <BackwardConfig config, class Modification>
struct KeyRows : ScaleFactor<is_scaled(config)> {  // from P times 2^15 to what dS is stored as
  static constexpr int kM = config.block_m, kKeys = block_keys(config);
  static constexpr int kWidth = round_up(config.head_dim, 16),
                       kWidthV = round_up(config.head_dim_v, 16);
  static constexpr ptx::MmaType kType = kMmaType<config.element>;

  const BackwardParams& params;
  const Modification& modification;
  BackwardShared<config> s;
  int half, warp, lane;                            // which 64 keys; warp of the warpgroup
  float score[kM / 2];                             // S^T, then dP^T
  RingPosition<config.num_stages_bias> bias_ring;  // of the tile that is taken next

  SIRDAR_DEVICE KeyRows(const BackwardParams& p, const Modification& m,
                        BackwardShared<config> shared, int which, int thread)
      : params(p), modification(m), s(shared), half(which), warp(thread / 32), lane(thread % 32) {}

  // ---- products

  // Accumulators that begin with a number of their column, a query row: -lse / scale, -delta. The
  // stage may go back without a fence once the product has been waited for: it has had the numbers.
  SIRDAR_DEVICE void start_columns(uint32_t values) {
    SIRDAR_UNROLL
    for (int i = 0; i < kM / 8; ++i) {
      const ptx::Float2 pair = ptx::load_shared_float2(values + 8 * (lane % 4) + 32 * i);
      score[4 * i] = score[4 * i + 2] = pair.x;
      score[4 * i + 1] = score[4 * i + 3] = pair.y;
    }
    ptx::registers_ready(score);
  }

  // score += keys' rows of `a` times rows of `b`, over `kDepth` columns of both; or = of those.
  template <int kDepth, bool kAdds = true>
  SIRDAR_DEVICE void multiply_rows(uint32_t a, uint32_t b) {
    const uint64_t keys = ptx::wgmma_descriptor(a + half * 8192, 16, 1024);
    const uint64_t queries = ptx::wgmma_descriptor(b, 16, 1024);
    ptx::wgmma_fence();
    SIRDAR_UNROLL
    for (int step = 0; step < kDepth / 16; ++step) {
      ptx::Wgmma<kM>::template ss<kType>(score, keys + (step / 4) * (kKeys * 8) + (step % 4) * 2,
                                         queries + (step / 4) * (kM * 8) + (step % 4) * 2,
                                         kAdds || step > 0 ? 1 : 0);
    }
    ptx::wgmma_commit_group();
  }
  // S^T of the Q in a stage; `starts` are the numbers of its rows.
  SIRDAR_DEVICE void multiply_scores(uint32_t q, uint32_t starts) {
    if constexpr (has_slopes(config)) {
      ptx::registers_ready(score);
      multiply_rows<kWidth, false>(s.k(), q);
    } else {
      start_columns(starts);
      multiply_rows<kWidth>(s.k(), q);
    }
  }
  template <int kColumns>
  SIRDAR_DEVICE void multiply_columns(float (&sum)[kColumns / 2], const uint32_t (&a)[kM / 4],
                                      uint32_t rows) {
    const uint64_t b = ptx::wgmma_descriptor(rows, kM * 128, 1024);
    SIRDAR_UNROLL
    for (int step = 0; step < kM / 16; ++step) {
      ptx::Wgmma<kColumns>::template rs<kType, 1>(sum, a + 4 * step, b + step * 128, 1);
    }
  }
  // sum += weights times the tile at `rows`, whose rows are queries. 128 columns a product: ptxas
  // looks at the registers that the kernel begins with.
  template <int kColumns>
  SIRDAR_DEVICE void multiply_tile(float (&sum)[kColumns / 2], const uint32_t (&a)[kM / 4],
                                   uint32_t rows) {
    ptx::wgmma_fence();
    if constexpr (kColumns <= 128) {
      multiply_columns<kColumns>(sum, a, rows);
    } else {
      constexpr int kRest = kColumns - 128;
      multiply_columns<128>(reinterpret_cast<float(&)[64]>(sum), a, rows);
      multiply_columns<kRest>(reinterpret_cast<float(&)[kRest / 2]>(sum[64]), a,
                              rows + 2 * kM * 128);
    }
    ptx::wgmma_commit_group();
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

  // The same by every lane: of what lanes have read or written themselves. One arrival behind the
  // warp's barrier would order as much, but compute-sanitizer does not follow it; neither costs
  // time.
  SIRDAR_DEVICE void arrive_each(uint32_t bar) { ptx::mbarrier_arrive(bar); }

  // A stage of which every lane has read numbers goes back: TMA writes there next, which an arrival
  // alone does not keep behind loads that are on their way. The fence waits for all of the thread's
  // accesses: not where products have had what was read.
  SIRDAR_DEVICE void give_back_read(uint32_t bar) {
    ptx::fence_proxy_async_shared();
    arrive_each(bar);
  }

  // ---- between products

  // Scores that are not seen become ones whose weight is 0.
  SIRDAR_DEVICE void hide(const KeyBlock& block, int tile) {
    const int first_key = block.first_key + 64 * half, first_row = tile * kM;
    const BackwardBounds<config> bounds = bounds_of<config>(params, block.sequence);
    bool is_whole =
        bounds.hi(first_row) >= first_key + 64 && bounds.lo(first_row + kM - 1) <= first_key;
    // An infinite key times the zeros behind the end is NaN, and nobody would make it again.
    if constexpr (!restores(config)) is_whole &= first_row + kM <= block.sequence.q.length;
    if (is_whole) return;
    SIRDAR_UNROLL
    for (int lower = 0; lower < 2; ++lower) {
      const int key = first_key + 16 * warp + lane / 4 + 8 * lower;
      const int origin = first_row + 2 * (lane % 4);
      const bool exists = key < block.sequence.k.length;
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

  SIRDAR_DEVICE float weight(float logit) const {
    return ptx::exp2_approx(exponent_of<config>(params, logit));
  }
  // `kept`: with keeps_remainders, what rounding took.
  SIRDAR_DEVICE void take_weights(const KeyBlock& block, int tile, uint32_t (&weights)[kM / 4],
                                  uint32_t (&kept)[kM / 4]) {
    hide(block, tile);
    SIRDAR_UNROLL
    for (int i = 0; i < kM / 4; ++i) {
      weights[i] = word_of<config>(weight(score[2 * i]), weight(score[2 * i + 1]), kept[i]);
    }
  }

  SIRDAR_DEVICE KeyWalk<config> walk_of(const KeyBlock& block) const {
    if constexpr (config.has_mask_mod) {
      return KeyWalk<config>(block.num_walked);
    } else {
      return KeyWalk<config>(block, params);
    }
  }
  // Whether these keys see nothing of the walk's tile, whose Q comes to `stage`; with masks that
  // read data it is waited for.
  SIRDAR_DEVICE bool sees_nothing(const KeyBlock& block, KeyWalk<config>& walk,
                                  const RingPosition<config.num_stages_q>& q) const {
    if constexpr (config.has_mask_mod) {
      ptx::mbarrier_wait(s.q_full(q.stage), q.parity);
      walk.hear(s.told(q.stage), half);
      return walk.shown == Shown::kNothing;
    } else {
      return is_blind<config>(params, block, walk.tile, half);
    }
  }
  SIRDAR_DEVICE TilePlace place_in(const KeyBlock& block, const KeyWalk<config>& walk) const {
    return {block.batch,
            block.head_kv * params.group_size + head_of(walk),
            tile_of(walk) * kM + 2 * (lane % 4),
            block.first_key + 64 * half + 16 * warp + lane / 4,
            block.sequence.q.length,
            block.sequence.k.length};
  }
  SIRDAR_DEVICE AskedTile<config> look(const KeyBlock& block, const KeyWalk<config>& walk) const {
    AskedTile<config> asked;
    if constexpr (config.has_mask_mod) {
      asked.shown.load(params, walk.shown, 16 * warp + lane / 4, lane);
    }
    if constexpr (config.bias != Bias::none && config.num_stages_bias == 0) {
      asked.bias.load(params, place_in(block, walk));
    }
    return asked;
  }

  SIRDAR_DEVICE void wait_for_bias() const {
    ptx::mbarrier_wait(s.bias_full(bias_ring.stage, half), bias_ring.parity);
  }
  SIRDAR_DEVICE void give_back_bias() {
    give_back_read(s.bias_empty(bias_ring.stage, half));
    bias_ring.advance();
  }

  // take_weights() of scores that are modified. `kept`: where logits have slopes, the weights
  // times those. Weights of pairs that are not seen are 0, whatever their scores.
  SIRDAR_DEVICE void take_modified(const KeyBlock& block, const KeyWalk<config>& walk,
                                   uint32_t starts, const AskedTile<config>& asked,
                                   uint32_t (&weights)[kM / 4], uint32_t (&kept)[kM / 4]) {
    const TilePlace at = place_in(block, walk);
    starts += 8 * (lane % 4);
    if constexpr (config.num_stages_bias > 0) {
      wait_for_bias();
      const BiasStage<config> bias(s.bias(bias_ring.stage, half), warp, lane);
      make_weights<config>(params, modification, at, bias, score, starts, weights, kept);
      give_back_bias();
    } else {
      make_weights<config>(params, modification, at, asked.bias, score, starts, weights, kept);
    }
    const BackwardBounds<config> bounds = bounds_of<config>(params, block.sequence);
    SeenQueries<kM> seen;
    const auto show_bounds = [&] {
      seen.show(false, rows_that_see(bounds, at, at.key));
      seen.show(true, rows_that_see(bounds, at, at.key + 8));
    };
    if constexpr (config.has_mask_mod) {
      if (walk.shown == Shown::kAll) return;
      if (walk.shown == Shown::kLook) {
        show_bounds();
        ShownTile<config>::look(modification, at, lane, seen);
      } else {
        seen = asked.shown.seen;
      }
    } else {
      const int first_row = walk.tile * kM, first_key = block.first_key + 64 * half;
      const bool is_whole = bounds.hi(first_row) >= first_key + 64 &&
                            bounds.lo(first_row + kM - 1) <= first_key &&
                            first_key + 64 <= at.seqlen_k && first_row + kM <= at.seqlen_q;
      if (is_whole) return;
      show_bounds();
    }
    seen.clear(weights);
    if constexpr (has_slopes(config) || config.keeps_remainders) seen.clear(kept);
  }

  // `kept`: what take_weights() keeps, if it does.
  SIRDAR_DEVICE uint32_t product(int i, uint32_t pair, uint32_t kept = 0) const {
    constexpr bool kIsBf16 = config.element == Element::bf16;
    if constexpr (config.packs_products) {
      float low = score[2 * i], high = score[2 * i + 1];
      if constexpr (is_scaled(config)) {
        low *= this->factor;
        high *= this->factor;
      }
      const uint32_t dp = pack<config.element>(low, high);
      return kIsBf16 ? ptx::multiply_bf16x2(pair, dp) : ptx::multiply_f16x2(pair, dp);
    }
    // An fp32 copy of the weights has no registers.
    FloatPair weight;
    if constexpr (config.keeps_remainders) {
      weight = join_halves(pair, kept);
    } else {
      weight = unpack<config.element>(pair);
    }
    if constexpr (is_scaled(config)) {
      weight.low *= this->factor;
      weight.high *= this->factor;
    }
    return pack<config.element>(weight.low * score[2 * i], weight.high * score[2 * i + 1]);
  }

  // In a cluster the other block reads it too.
  SIRDAR_DEVICE void wait_for_ds(int stage, int parity) {
    if constexpr (config.cluster_size == 1) {
      ptx::mbarrier_wait(s.ds_empty(stage), parity);
    } else {
      ptx::mbarrier_wait_cluster(s.ds_empty(stage), parity);
    }
  }

  // dS^T of this warp's keys to shared memory, as [64 queries][key][query].
  SIRDAR_DEVICE void hand_over(const uint32_t (&products)[kM / 4], RingPosition<config.num_ds> at) {
    wait_for_ds(at.stage, at.parity ^ 1);
    const int row = 64 * half + 16 * warp + (lane & 15);
    SIRDAR_UNROLL
    for (int j = 0; j < kM / 16; ++j) {
      const uint32_t dst = s.ds(at.stage) + (j / 4) * (kKeys * 128) + row * 128 +
                           ((((j & 3) * 2 + (lane >> 4)) ^ (lane & 7)) << 4);
      ptx::stmatrix_x4(dst, products[4 * j], products[4 * j + 1], products[4 * j + 2],
                       products[4 * j + 3]);
    }
    ptx::fence_proxy_async_shared();
    arrive(s.ds_full(at.stage));
  }

  // dQ has read dS of the tile before `next`, and K with it.
  SIRDAR_DEVICE void wait_for_dq(RingPosition<config.num_ds> next) {
    const int last = (next.stage + config.num_ds - 1) % config.num_ds;
    wait_for_ds(last, next.stage == 0 ? next.parity ^ 1 : next.parity);
  }

  // ---- results

  SIRDAR_DEVICE void wait_for_factor(int parity) {
    if constexpr (is_scaled(config)) {
      this->factor = wait_for_scale(s, parity) * (1 / kWeightScale);
    }
  }
  // From sums to gradients.
  static constexpr float kValueFactor = is_scaled(config) ? 1 / kWeightScale : 1.0f;
  SIRDAR_DEVICE float key_factor() const {
    if constexpr (is_scaled(config)) {
      return params.scale * inverse_of(this->factor * kWeightScale);
    }
    return params.scale * (1 / weight_factor(config));
  }

  // For convert(): keys whose gradients are not finite.
  SIRDAR_DEVICE void write_lost(const KeyBlock& block, int word, uint32_t keys) const {
    const long long head =
        number_of<config>(params, block.walked) * params.num_heads_kv + block.head_kv;
    const long long first = head * params.num_blocks_n * config.cluster_size;
    const int index = block.first_key / block_keys(config);
    if (lane == 0) params.lost[kLostWords * (first + index) + word] = keys;
  }

  // Where a gradient goes, and the barrier of this warpgroup.
  struct Gradient {
    const TensorMap& map;
    const RowView& rows;
    int num_columns, barrier;
  };

  // The rows of a tile that a sequence ends in; what lies behind is another's.
  SIRDAR_DEVICE void store_some(uint32_t tile, const Gradient& gradient, const KeyBlock& block,
                                int first_key, int num_rows) {
    const int batch = params.cu_seqlens_k.data != nullptr ? 0 : block.batch;
    uint16_t* const base = static_cast<uint16_t*>(gradient.rows.data) +
                           batch * gradient.rows.stride_batch +
                           block.head_kv * gradient.rows.stride_head;
    const int pieces = gradient.num_columns / 8;  // of a row
    SIRDAR_NO_UNROLL
    for (int i = 32 * warp + lane; i < num_rows * pieces; i += 128) {
      const int row = i / pieces, piece = i - row * pieces, staged = 64 * half + row;
      const uint32_t src =
          tile + (piece / 8) * (kKeys * 128) + staged * 128 + (((piece % 8) ^ (staged & 7)) << 4);
      uint16_t* const to =
          base + (block.sequence.k.begin + first_key + row) * gradient.rows.stride_row + 8 * piece;
      *reinterpret_cast<ptx::Int4*>(to) = ptx::load_shared_int4(src);
    }
    ptx::fence_proxy_async_shared();
    ptx::barrier_sync(gradient.barrier, 128);  // before the tile is loaded into
  }

  // Rows leave through those of K or V that only this warpgroup still could read.
  template <int kColumns>
  SIRDAR_DEVICE void store(const float (&sum)[kColumns / 2], float factor, uint32_t tile,
                           const Gradient& gradient, const KeyBlock& block) {
    const int row = 64 * half + 16 * warp + (lane & 15);
    const auto word = [&](int i) {
      return pack<config.element>(sum[2 * i] * factor, sum[2 * i + 1] * factor);
    };
    SIRDAR_UNROLL
    for (int j = 0; j < kColumns / 16; ++j) {
      const uint32_t dst = tile + (j / 4) * (kKeys * 128) + row * 128 +
                           ((((j & 3) * 2 + (lane >> 4)) ^ (lane & 7)) << 4);
      ptx::stmatrix_x4(dst, word(4 * j), word(4 * j + 1), word(4 * j + 2), word(4 * j + 3));
    }
    ptx::fence_proxy_async_shared();
    ptx::barrier_sync(gradient.barrier, 128);
    const int first_key = block.first_key + 64 * half;
    int batch = block.batch, first_row = first_key;
    if constexpr (config.has_chunks) first_row += block.sequence.k.begin;
    if constexpr (config.has_lengths) {
      const int left =
          rows_there<true>(params.cu_seqlens_k, params.seqlen_k, block.batch) - first_key;
      if (left < 64) {
        store_some(tile, gradient, block, first_key, ptx::max_of(left, 0));
        return;
      }
      first_row += block.sequence.k.begin;
      if (params.cu_seqlens_k.data != nullptr) batch = 0;
    }
    if (warp == 0 && lane == 0) {
      SIRDAR_UNROLL
      for (int c = 0; c < columns(kColumns) / 64; ++c) {
        ptx::cp_async_bulk_tensor_4d_store(gradient.map, tile + c * (kKeys * 128) + half * 8192,
                                           64 * c, first_row, block.head_kv, batch);
      }
      ptx::cp_async_bulk_commit_group();
    }
  }

  // Both gradients of the block have left.
  SIRDAR_DEVICE void give_back_keys() { give_back_behind<0>(s.kv_empty()); }
  // All gradients but the last `kPending` have.
  template <int kPending>
  SIRDAR_DEVICE void give_back_behind(uint32_t bar) {
    if (warp == 0 && lane == 0) {
      ptx::cp_async_bulk_wait_group_read<kPending>();
      ptx::mbarrier_arrive(bar);
    }
    ptx::syncwarp();
  }
  SIRDAR_DEVICE void give_back(uint32_t bar) {
    if (warp == 0 && lane == 0) ptx::mbarrier_arrive(bar);
    ptx::syncwarp();
  }
};

}  // namespace sirdar::sm90
