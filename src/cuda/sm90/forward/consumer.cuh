// A consumer warpgroup: 64 query rows. One flat pipeline over all (item, key block) pairs, key
// blocks from right to left: scores of block j are issued together with the product of block j + 1
// by V, and the first scores of an item with the last product of the item before it. With one Q
// buffer they come after its output has left the registers, which hides Q's load.
#pragma once

#include "cuda/sm90/forward/bias.cuh"
#include "cuda/sm90/forward/cover.cuh"
#include "cuda/sm90/forward/exact.cuh"
#include "cuda/sm90/forward/modify.cuh"
#include "cuda/sm90/forward/row_end.cuh"
#include "cuda/sm90/forward/shared.cuh"
#include "cuda/sm90/forward/softmax.cuh"

namespace sirdar::sm90 {

// What the logits of one score tile are made of besides the scores.
template <ForwardConfig config>
struct LogitTerms {
  BiasTile<config.num_stages_bias == 0 ? config.bias : Bias::none, config.block_n> bias;
  StagedBias<config.num_stages_bias == 0 ? Bias::none : config.bias, config.block_n> staged_bias;
  SeenScores<config.block_n / 2> seen;  // where a mask of the caller's may hide
};

template <bool kValue>
struct Flag {
  static constexpr bool value = kValue;
};

template <ForwardConfig config, class Modification>
struct Consumer {
  static_assert(config.has_score_mod == Modification::kScores &&
                config.has_mask_mod == Modification::kMasks);
  static constexpr int kN = config.block_n, kM = block_m(config), kDepth = depth_qk(config),
                       kWidth = width_pv(config), kWarpgroups = config.num_consumers;
  static constexpr ptx::MmaType kType =
      config.element == Element::bf16 ? ptx::MmaType::bf16 : ptx::MmaType::f16;
  static constexpr bool kHasLo = config.mask == MaskForm::interval;
  static constexpr bool kReadsBias = config.bias != Bias::none && config.num_stages_bias == 0,
                        kStagesBias = config.num_stages_bias > 0;
  static constexpr bool kStagesOut = config.num_q_buffers > 1;
  // A thread's two rows, eight apart.
  static constexpr bool kHasOneHead = config.num_packed_heads <= 8;
  using Terms = LogitTerms<config>;
  static constexpr int kThreshold = config.softmax == Softmax::conditional ? 8 : 0;
  // In the guarded loop, whose exponentials need no logits before.
  static constexpr bool kAddsAlibiLast =
      config.has_alibi && !config.has_softcap && config.bias == Bias::none && !config.has_score_mod;
  static constexpr bool kCapsLast =
      config.has_softcap && !config.has_alibi && config.bias == Bias::none && !config.has_score_mod;
  // What is hidden is so before the exponentials, and its weights are 0 against any reference.
  static constexpr bool kHidesFirst = !config.has_logits;
  // With the staged bias, in one multiply-add.
  static constexpr bool kScalesLast = kStagesBias && !config.has_softcap && !config.has_alibi;
  // A warp whose items overflowed this often takes the running maximum for the rest of one. Scores
  // that are too large for a polynomial are found the same way, and say nothing of the next
  // block's.
  static constexpr int kEndless = 1 << 30, kPatience = kCapsLast ? kEndless : 1;
  // How many times its part of the row's sum a thread's may be in one block without the reference
  // following: what random keys do not reach, and a weight that rules its row nearly always does.
  static constexpr bool kFollows = follows_rulers(config);
  static constexpr float kGuard = guard_of(config.element), kGrowth = kN <= 64 ? 5 : 4,
                         kGrowthOfFewKeys = 64;

  const ForwardParams& params;
  const Modification& modification;
  SharedAddresses<config> s;
  int warpgroup, warp, lane;  // warp within the warpgroup
  float scale;
  Counters* counters = nullptr;  // the kernel's own, with shares_last_round

  float scores[kN / 2];
  uint32_t weights[kN / 4];
  float out[kWidth / 2];
  RowState rows;
  RowPair limits{kGuard, kGuard};  // of a block's sums: above them references are moved
  int out_started = 0;             // the scale-D of the next product: 0 starts the sum

  RingPosition<config.num_stages_k> k_ring;
  RingPosition<config.num_stages_v> v_ring;
  RingPosition<config.num_q_buffers> q_ring;  // of the current item
  RingPosition<kStagesBias ? config.num_stages_bias : 1> bias_ring;
  int slot = 0;                // its info
  bool store_pending = false;  // the item before may still be leaving its buffer
  int overflows = 0;           // of this warp, in the current item

  WorkItem item;
  int num_blocks;  // key blocks that this warpgroup walks: the item's but for skipped ones

  SIRDAR_DEVICE Consumer(const ForwardParams& p, const Modification& m,
                         SharedAddresses<config> shared, int wg, int thread)
      : params(p),
        modification(m),
        s(shared),
        warpgroup(wg),
        warp(thread / 32),
        lane(thread % 32),
        scale(config.has_logits ? kLog2e : p.scale_log2) {}

  SIRDAR_DEVICE bool is_leader() const { return warp == 0 && lane == 0; }
  // Tile rows: the first of this warpgroup, and this thread's upper one.
  SIRDAR_DEVICE int first_row(const WorkItem& of) const { return of.block * kM + 64 * warpgroup; }
  SIRDAR_DEVICE int thread_row(const WorkItem& of) const {
    return first_row(of) + 16 * warp + lane / 4;
  }
  // The same within the sequence: this warpgroup's first and last, and those of a thread.
  SIRDAR_DEVICE int first_query_row(const WorkItem& of) const {
    return query_row<config>(first_row(of));
  }
  SIRDAR_DEVICE int last_query_row(const WorkItem& of) const {
    return query_row<config>(first_row(of) + 63);
  }
  SIRDAR_DEVICE QueryRow upper_row(const WorkItem& of) const {
    return query_row_of<config>(params, of, thread_row(of));
  }
  SIRDAR_DEVICE QueryRow lower_row(const WorkItem& of) const {
    return query_row_of<config>(params, of, thread_row(of) + 8);
  }

  // ---- products

  template <class Half>
  SIRDAR_DEVICE void issue_qk(int buffer, Half) {
    constexpr int kColumns = Half::value ? kN / 2 : kN;
    auto& target = reinterpret_cast<float(&)[kColumns / 2]>(scores);
    const uint64_t q = ptx::wgmma_descriptor(s.q(buffer) + warpgroup * 8192, 16, 1024);
    const uint64_t k = ptx::wgmma_descriptor(s.k(k_ring.stage), 16, 1024);
    // Chunks of 64 columns, of which the last may be narrower; 32 bytes a step within the
    // swizzle's.
    constexpr int kSteps = kDepth / 16, kWhole = kSteps / 4 * 4;
    SIRDAR_UNROLL
    for (int step = 0; step < kWhole; step += 4) {
      ptx::Wgmma<kColumns>::template ss4<kType, 2, 2>(target, q + (step / 4) * (kM * 8),
                                                      k + (step / 4) * (kN * 8), step > 0 ? 1 : 0);
    }
    SIRDAR_UNROLL
    for (int step = kWhole; step < kSteps; ++step) {
      ptx::Wgmma<kColumns>::template ss<kType>(target, q + (step / 4) * (kM * 8) + (step % 4) * 2,
                                               k + (step / 4) * (kN * 8) + (step % 4) * 2,
                                               step > 0 ? 1 : 0);
    }
    ptx::wgmma_commit_group();
  }

  SIRDAR_DEVICE void issue_pv() {
    ptx::wgmma_fence();  // after a wait loop ptxas would insert one, and say so
    const uint64_t v = ptx::wgmma_descriptor(s.v(v_ring.stage), kN * 128, 1024);
    constexpr int kSteps = kN / 16, kWhole = kSteps / 4 * 4;
    SIRDAR_UNROLL
    for (int step = 0; step < kWhole; step += 4) {
      ptx::Wgmma<kWidth>::template rs4<kType, 128, 1>(out, weights + 4 * step, v + step * 128,
                                                      step > 0 ? 1 : out_started);
    }
    SIRDAR_UNROLL
    for (int step = kWhole; step < kSteps; ++step) {
      ptx::Wgmma<kWidth>::template rs<kType, 1>(out, weights + 4 * step, v + step * 128,
                                                step > 0 ? 1 : out_started);
    }
    ptx::wgmma_commit_group();
    out_started = 1;
  }

  template <class Half>
  SIRDAR_DEVICE void pack_weights(Half) {
    constexpr int kCount = Half::value ? kN / 8 : kN / 4;
    SIRDAR_UNROLL
    for (int i = 0; i < kN / 4; ++i) {
      weights[i] = i < kCount ? pack<config.element>(scores[2 * i], scores[2 * i + 1]) : 0u;
    }
  }

  // ---- hand-over

  // Warpgroups issue their products one after the other, so that each finds the tensor core free
  // while the other takes exponentials.
  SIRDAR_DEVICE void wait_turn() {
    if constexpr (config.takes_turns) ptx::barrier_sync(1 + warpgroup, 256);
  }
  SIRDAR_DEVICE void pass_turn() {
    if constexpr (config.takes_turns) {
      ptx::barrier_arrive(1 + (warpgroup + 1) % kWarpgroups, 256);
    }
  }
  SIRDAR_DEVICE void wait_k() { ptx::mbarrier_wait(s.k_full(k_ring.stage), k_ring.parity); }
  SIRDAR_DEVICE void wait_v() { ptx::mbarrier_wait(s.v_full(v_ring.stage), v_ring.parity); }
  // To whoever loads it next: in a cluster both blocks do, half each.
  SIRDAR_DEVICE void give_back(uint32_t empty) {
    if constexpr (config.cluster_size == 1) {
      ptx::mbarrier_arrive(empty);
    } else {
      for (int cta = 0; cta < config.cluster_size; ++cta) ptx::mbarrier_arrive_cluster(empty, cta);
    }
  }
  SIRDAR_DEVICE void release_k() {
    if (lane == 0) give_back(s.k_empty(k_ring.stage));
    k_ring.advance();
  }
  SIRDAR_DEVICE void release_v() {
    if (lane == 0) give_back(s.v_empty(v_ring.stage));
    v_ring.advance();
  }
  // Lanes keep together (a turn does it): one that looked at a barrier only after another has given
  // the stage back could find it two phases on, and wait for ever.
  SIRDAR_DEVICE void skip_k(int count) {
    for (int i = 0; i < count; ++i) {
      wait_k();
      wait_turn();
      pass_turn();
      if constexpr (!config.takes_turns) ptx::syncwarp();
      release_k();
    }
  }
  SIRDAR_DEVICE void skip_v(int count) {
    for (int i = 0; i < count; ++i) {
      wait_v();
      ptx::syncwarp();
      release_v();
    }
  }
  // Q's buffer is given back: where O leaves through it, once the item before this one has left.
  SIRDAR_DEVICE void release_previous_out() {
    if constexpr (!kStagesOut) return;
    if (!store_pending) return;
    if (is_leader()) {
      ptx::cp_async_bulk_wait_group_read<0>();
      constexpr int kBuffers = config.num_q_buffers;
      ptx::mbarrier_arrive(s.q_empty((q_ring.stage + kBuffers - 1) % kBuffers));
    }
    store_pending = false;
  }
  // Which of the barriers of Q is this warpgroup's.
  SIRDAR_DEVICE int q_part() const { return kStagesOut ? q_ring.stage : warpgroup; }
  // With one buffer: no scores of this item are left to take.
  SIRDAR_DEVICE void release_q() {
    if (!kStagesOut && lane == 0) ptx::mbarrier_arrive(s.q_empty(q_part()));
  }

  // ---- rows that a NaN or an infinity has reached, where another warp makes them again

  // The item before is done with there, and the word says `finite` again.
  SIRDAR_DEVICE void mark_rows(Handed what, uint32_t item_parity) const {
    static_assert(config.num_q_buffers == 1);  // whose phase is an item's
    ptx::mbarrier_wait(s.lost_empty(), item_parity ^ 1);
    ptx::syncwarp();
    if (what != Handed::finite && lane == 0) {
      ptx::store_shared(s.lost(4 * warpgroup + warp), static_cast<uint32_t>(what));
    }
  }
  SIRDAR_DEVICE void mark_rows() const {
    float sums[2] = {0, 0};
    SIRDAR_UNROLL
    for (int i = 0; i < kWidth / 2; ++i) sums[i % 2] += out[i];
    constexpr float kInfinity = -kMinusInfinity;
    const bool is_lost = ptx::any_sync(!(ptx::absolute(sums[0] + sums[1]) < kInfinity));
    mark_rows(is_lost ? Handed::lost : Handed::finite, q_ring.parity);
  }
  // After they are stored, by all lanes.
  SIRDAR_DEVICE void hand_rows_over() const {
    ptx::syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(s.lost_full());
  }
  SIRDAR_DEVICE void dismiss(uint32_t item_parity) const {
    if constexpr (hands_rows_over(config)) mark_rows(Handed::no_more_items, item_parity);
    if constexpr (sends_out(config)) {
      ptx::mbarrier_wait(s.out_empty(warpgroup), item_parity ^ 1);  // of the last item
      hand_out_over(kNoMoreOut);
    } else if constexpr (hands_rows_over(config)) {
      hand_rows_over();
    }
  }

  // The output is where `place` says; by all lanes.
  SIRDAR_DEVICE void hand_out_over(uint32_t place) const {
    if (is_leader()) ptx::store_shared(s.out_place(warpgroup), place);
    ptx::syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(s.out_full(warpgroup));
  }
  // The stage of V for it, of those that the item has used last: free when all have given it back.
  SIRDAR_DEVICE uint32_t wait_out_stage() const {
    RingPosition<config.num_stages_v> ring = v_ring;
    if (warpgroup > 0) ring.advance();
    ptx::mbarrier_wait(s.v_empty(ring.stage), ring.parity ^ 1);
    return s.v(ring.stage);
  }

  // ---- masks

  SIRDAR_DEVICE KeyBounds<config> bounds_of(const WorkItem& of) const {
    return KeyBounds<config>(params, of.seqlen_q, of.seqlen_k);
  }
  // Bounds of this thread's two rows, relative to its first column of key block `block`.
  SIRDAR_DEVICE ColumnBounds column_bounds(const WorkItem& of, int block) const {
    const KeyBounds<config> bounds = bounds_of(of);
    const int row = thread_row(of), origin = block * kN + 2 * (lane % 4);
    const auto upper = [&] { return query_row<config>(row); };
    const auto lower = [&] { return query_row<config>(row + 8); };
    return {bounds.lo(upper()) - origin, bounds.hi(upper()) - origin, bounds.lo(lower()) - origin,
            bounds.hi(lower()) - origin};
  }
  SIRDAR_DEVICE int own_blocks(const WorkItem& of) const {
    if constexpr (config.trim == 0) return of.num_blocks;
    const int end = bounds_of(of).hi(last_query_row(of));
    return ptx::max_of(
        1, ptx::min_of(of.num_blocks, (ptx::max_of(end, 0) + kN - 1) / kN - of.first_block));
  }
  SIRDAR_DEVICE bool needs_half(const WorkItem& of, int blocks) const {
    if constexpr (config.trim < 2) return false;
    return bounds_of(of).hi(last_query_row(of)) <= (of.first_block + blocks - 1) * kN + kN / 2;
  }

  // ---- softmax

  // Of the stage whose K has arrived.
  SIRDAR_DEVICE SeenBlock known_block() const {
    if constexpr (!config.has_mask_mod) return {};
    return read_block(s.block_info(k_ring.stage));
  }
  // What logits are made of besides scores. A bias is asked for before the products are issued,
  // and the tile that is walked next from memory; masks are looked at while they run.
  SIRDAR_DEVICE void load_bias(const WorkItem& of, int block, Terms& terms) const {
    if constexpr (kReadsBias) {
      terms.bias.template load<kHasOneHead>(params.bias, of, upper_row(of), lower_row(of),
                                            block * kN, lane);
      if (block > of.first_block) {
        const auto row = [&] { return first_row(of) + 16 * warp + lane / 2; };
        terms.bias.prefetch(params.bias, of, query_row_of<config>(params, of, row()).head,
                            query_row<config>(row()), (block - 1) * kN, lane % 2);
      }
    }
  }
  SIRDAR_DEVICE void load_seen(const SeenBlock& known, Terms& terms) const {
    if constexpr (config.has_mask_mod) {
      if (known.tile < 0) return;
      const long long first = static_cast<long long>(known.tile) * seen_words(config);
      terms.seen.load(params.cover.tiles + first, 4 * (64 * warpgroup + 16 * warp) + lane);
    }
  }
  // While the products run.
  SIRDAR_DEVICE void take_bias(Terms& terms) {
    if constexpr (kStagesBias) {
      ptx::mbarrier_wait(s.bias_full(warpgroup, bias_ring.stage), bias_ring.parity);
      terms.staged_bias.load(s.bias(warpgroup, bias_ring.stage), warp, lane);
      // TMA writes there next, which an arrival alone does not keep behind loads that are on their
      // way; every lane has read it.
      ptx::fence_proxy_async_shared();
      ptx::mbarrier_arrive(s.bias_empty(warpgroup, bias_ring.stage));
      bias_ring.advance();
    }
  }
  // What the tile does not say: all of the masks, or only the structured ones.
  SIRDAR_DEVICE void find_seen(const WorkItem& of, const SeenBlock& known, Terms& terms) const {
    if constexpr (config.has_mask_mod) {
      if (known.tile >= 0) return;
      terms.seen = SeenScores<kN / 2>::template within<kHasLo>(column_bounds(of, known.index));
      if (known.tile == SeenBlock::kAll) return;
      const int row = first_row(of) + 16 * warp + lane % 16;
      SeenKeys<kN> keys;
      keys.find(modification, of, query_row_of<config>(params, of, row), known.index * kN, lane);
      keys.keep_in(terms.seen, lane);
    }
  }

  // Scores to logits, in natural-log units.
  template <bool kIsExact = true, int kCount>
  SIRDAR_DEVICE void make_logits(float (&s_)[kCount], const WorkItem& of, int block,
                                 const Terms& terms) const {
    if constexpr (config.has_logits && !kScalesLast) add_terms(s_, of, block);
    if constexpr (kReadsBias) terms.bias.add(s_);
    if constexpr (kStagesBias) {
      terms.staged_bias.template add<kIsExact>(s_, kScalesLast ? params.scale_log2 : 1.0f);
    }
    change_logits(s_, of, block);
  }
  template <int kCount>
  SIRDAR_DEVICE void change_logits(float (&s_)[kCount], const WorkItem& of, int block) const {
    if constexpr (config.has_score_mod) {
      modify_scores<kHasOneHead>(modification, of, upper_row(of), lower_row(of),
                                 block * kN + 2 * (lane % 4), s_);
    }
  }
  // All the masks there are.
  template <int kCount>
  SIRDAR_DEVICE void hide(float (&s_)[kCount], const WorkItem& of, int block,
                          const Terms& terms) const {
    if constexpr (config.has_mask_mod) {
      terms.seen.hide_others(s_);
    } else {
      mask_scores<kHasLo>(s_, column_bounds(of, block));
    }
  }

  // Scale, soft-cap, ALiBi.
  template <int kCount>
  SIRDAR_DEVICE void add_terms(float (&s_)[kCount], const WorkItem& of, int block) const {
    if constexpr (config.has_softcap) {
      cap_scores(s_, params.cap_factors, params.softcap);
    } else {
      SIRDAR_UNROLL
      for (int i = 0; i < kCount; ++i) s_[i] *= params.scale_log2;
    }
    if constexpr (config.has_alibi) add_alibi(s_, of, block);
  }

  SIRDAR_DEVICE AlibiRows alibi_rows(const WorkItem& of, int block, float unit) const {
    const auto slope_of = [&](int head) {
      return params.alibi[of.batch * params.stride_alibi_batch + head * params.stride_alibi_head];
    };
    const QueryRow upper = upper_row(of), lower = lower_row(of);
    const float slope = slope_of(upper.head);
    // q_pos - k for this thread's upper row and first column.
    const int distance = upper.row + of.seqlen_k - of.seqlen_q - block * kN - 2 * (lane % 4);
    const int further = config.num_packed_heads == 1 ? 8 : lower.row - upper.row;
    return {{slope * unit, (kHasOneHead ? slope : slope_of(lower.head)) * unit},
            {static_cast<float>(distance), static_cast<float>(distance + further)}};
  }

  template <int kCount>
  SIRDAR_DEVICE void add_alibi(float (&s_)[kCount], const WorkItem& of, int block) const {
    AlibiRows alibi = alibi_rows(of, block, 1.0f);
    // Distances that the compiler took for those of the guarded loop would be kept for this rare
    // text.
    float starts[2] = {alibi.starts.upper, alibi.starts.lower};
    ptx::registers_ready(starts);
    alibi.starts = {starts[0], starts[1]};
    SIRDAR_UNROLL
    for (int i = 0; i < kCount; ++i) {
      s_[i] += alibi.template at<config.is_alibi_one_sided>(i, {0, 0});
    }
  }

  // The first block of an item: an exact maximum.
  template <class Half>
  SIRDAR_DEVICE void first_softmax(const WorkItem& of, int blocks, const Terms& terms,
                                   RowState& state, Half) {
    constexpr int kCount = (Half::value ? kN / 2 : kN) / 2;
    auto& target = reinterpret_cast<float(&)[kCount]>(scores);
    const int block = of.first_block + blocks - 1;
    make_logits(target, of, block, terms);
    if (config.mask != MaskForm::full || config.has_mask_mod || (block + 1) * kN > of.seqlen_k) {
      hide(target, of, block, terms);
    }
    RowPair unused;
    online_update<config, 0>(target, scale, state, unused);
  }

  SIRDAR_DEVICE static void multiply(float (&d)[4], const uint32_t (&a)[4],
                                     const uint32_t (&b)[2]) {
    if constexpr (config.element == Element::bf16) {
      ptx::mma_m16n8k16_bf16(d, a, b);
    } else {
      ptx::mma_m16n8k16_f16(d, a, b);
    }
  }

  // One warp's scores again by mma.sync, whose accumulators lie like wgmma's: the guarded loop has
  // overwritten them. Needs no agreement with the other warps.
  SIRDAR_DEVICE void score_again(int block) {
    // Row or key of a lane in a fragment of sixteen, under the swizzle, and its 16-byte piece.
    const uint32_t q = s.q(q_ring.stage) + (64 * warpgroup + 16 * warp + (lane & 15)) * 128;
    const uint32_t k = s.k(k_ring.stage) + ((lane & 7) + ((lane >> 4) << 3)) * 128;
    // Three warpgroups' loop would lose half of its operand reuse to scores that begin together.
    constexpr int kKeys = kWarpgroups == 3 && kN % 32 == 0 ? 32 : kN;
    SIRDAR_UNROLL
    for (int first = 0; first < kN; first += kKeys) {
      SIRDAR_UNROLL
      for (int i = first / 2; i < (first + kKeys) / 2; ++i) scores[i] = 0;
      SIRDAR_NO_UNROLL
      for (int step = 0; step < kDepth / 16; ++step) {
        const int chunk = step / 4, piece = (step & 3) * 2;
        uint32_t a[4];
        ptx::ldmatrix_x4(a, q + chunk * (kM * 128) + (((piece + (lane >> 4)) ^ (lane & 7)) << 4));
        const uint32_t keys =
            k + chunk * (kN * 128) + (((piece + ((lane >> 3) & 1)) ^ (lane & 7)) << 4);
        SIRDAR_UNROLL
        for (int key = first; key < first + kKeys; key += 16) {
          uint32_t b[4];
          ptx::ldmatrix_x4(b, keys + key * 128);
          multiply(reinterpret_cast<float(&)[4]>(scores[key / 2]), a, {b[0], b[1]});
          multiply(reinterpret_cast<float(&)[4]>(scores[key / 2 + 4]), a, {b[2], b[3]});
        }
      }
    }
    ptx::fence_proxy_async_shared();  // TMA writes K's stage next, and Q's buffer
    ptx::syncwarp();                  // one lane gives K back for all that have read it
    Terms terms;
    load_bias(item, block, terms);
    if constexpr (kStagesBias) {  // the tile has been given back
      if constexpr (!kScalesLast) add_terms(scores, item, block);
      terms.staged_bias.add_again(scores, kScalesLast ? params.scale_log2 : 1.0f, params.bias, item,
                                  thread_row(item), block * kN, lane);
      change_logits(scores, item, block);
    } else {
      make_logits(scores, item, block, terms);
    }
  }

  // Border of basic blocks behind the exponentials that `sum` is of: without it ptxas moves the
  // wait for the product by V above them. No sum is negative.
  SIRDAR_DEVICE void hold_behind(RowPair sum) const {
    if (ptx::any_sync(sum.upper < 0 || sum.lower < 0)) ptx::nanosleep();
  }
  SIRDAR_DEVICE void wait_out() {
    ptx::wgmma_wait_group<0>();
    ptx::registers_ready(out);
    ptx::registers_ready(scores);
  }

  // Whether the running maximum is taken, and not the guarded reference.
  SIRDAR_DEVICE bool is_classic_now(bool hides) const {
    bool is_classic = kPatience != kEndless && overflows >= kPatience;
    if (config.has_mask_mod || config.bias != Bias::none || (kHidesFirst && hides)) {
      // A row that has seen nothing yet has no reference.
      const float least = ptx::min_of(rows.reference.upper, rows.reference.lower);
      is_classic |= ptx::any_sync(least == kMinusInfinity);
    }
    return is_classic;
  }

  SIRDAR_DEVICE void set_limits(float growth) {
    if constexpr (!kFollows) return;
    limits = {ptx::min_of(rows.sum.upper * growth, kGuard),
              ptx::min_of(rows.sum.lower * growth, kGuard)};
  }

  // Behind an item's first blocks, down to this one: the fewer of their keys a row has seen the
  // more others add, and the less is known of them. The upper row of a thread has seen the fewer.
  SIRDAR_DEVICE void set_first_limits(int block) {
    if constexpr (!kFollows) return;
    const KeyBounds<config> bounds = bounds_of(item);
    const int row = query_row<config>(thread_row(item));
    const int end = ptx::min_of(bounds.hi(row), (item.first_block + num_blocks) * kN);
    const int seen = end - (kHasLo ? ptx::max_of(bounds.lo(row), block * kN) : block * kN);
    const float times = kN * ptx::reciprocal_approx(static_cast<float>(ptx::max_of(seen, 1)));
    set_limits(times * ptx::fma_of(times, 0.25f, kGrowth - 0.25f));
  }

  SIRDAR_DEVICE RowPair with(RowPair added) const {
    if constexpr (!kFollows) return added;
    return {rows.sum.upper + added.upper, rows.sum.lower + added.lower};
  }

  // Exponentials against the reference as it stands; then the sums are looked at. True if the
  // reference moved: outputs so far are to be multiplied by `factor`. The branch also pins the
  // order: without the border of a basic block ptxas moves the wait for the product by V above the
  // exponentials. That wait itself stays out of the branch, which warps take one by one.
  template <class Hide>
  SIRDAR_DEVICE bool guarded_softmax(int block, bool is_classic, Hide hide_some, RowPair& factor) {
    // Behind all that was before, or of this block alone: what is added to -0 needs no addition.
    RowPair added = kFollows ? RowPair{-0.0f, -0.0f} : rows.sum;
    bool repairs = is_classic;
    if constexpr (kHidesFirst) hide_some();
    if (!is_classic) {
      if constexpr (kAddsAlibiLast) {
        exponentiate<config.is_alibi_one_sided>(scores, params.scale_log2 * kLog2e,
                                                alibi_rows(item, block, kLog2e), rows.reference,
                                                added);
      } else if constexpr (kCapsLast) {
        exponentiate_capped<config.writes_lse>(scores, params.cap, rows.reference, added);
      } else {
        exponentiate<config, false>(scores, scale, rows.reference, added);
      }
      repairs = ptx::any_sync(!(added.upper < limits.upper && added.lower < limits.lower));
    }
    if (repairs) {
      take_maximum(block, is_classic, hide_some, added, factor);
      set_limits(is_classic ? kGrowthOfFewKeys : kGrowth);
    } else {
      rows.sum = with(added);
    }
    return repairs;
  }

  // Behind the guarded exponentials: a weight may rule its row, or the running maximum is taken
  // anyway. `added`: the block's sums, without which those of the rows still are.
  template <class Hide>
  SIRDAR_DEVICE void take_maximum(int block, bool is_classic, Hide hide_some, RowPair added,
                                  RowPair& factor) {
    if constexpr (kStagesBias) {
      const RowPair reference = rows.reference, before = rows.sum;
      bool is_lost = false;
      if (is_classic) {
        hide_some();
        online_update<config, 0>(scores, scale, rows, factor);
        is_lost = has_lost(before);
      } else if (!follow_weights(added, factor)) {
        ++overflows;
        is_lost = true;
      }
      if (!is_lost) return;
      score_again(block);
      hide_some();
      rows = {reference, before};
      online_update<config, 0>(scores, scale, rows, factor);
    } else if (is_classic || !follow_weights(added, factor)) {
      if (!is_classic) {
        ++overflows;
        score_again(block);
        if constexpr (kHidesFirst) hide_some();
      } else if constexpr (kAddsAlibiLast || kCapsLast) {
        add_terms(scores, item, block);
      }
      if constexpr (!kHidesFirst) hide_some();
      online_update<config, 0>(scores, scale, rows, factor);
    }
  }

  // Whether a sum became NaN or infinite only now.
  SIRDAR_DEVICE bool has_lost(RowPair before) const {
    const auto is_finite = [](float x) { return x < -kMinusInfinity; };  // sums are not negative
    return ptx::any_sync((is_finite(before.upper) && !is_finite(rows.sum.upper)) ||
                         (is_finite(before.lower) && !is_finite(rows.sum.lower)));
  }

  // Where all sums are finite, references follow the block's largest weights. Otherwise false, and
  // the scores are wanted again.
  SIRDAR_DEVICE bool follow_weights(RowPair added, RowPair& factor) {
    const RowPair own = with(added), sum{quad_sum(own.upper), quad_sum(own.lower)};
    if (ptx::any_sync(!(sum.upper < 1e37f && sum.lower < 1e37f))) return false;
    const RowPair top = row_maxima(scores, 1.0f);
    factor = {follow_weight(top.upper, sum.upper, rows.reference.upper),
              follow_weight(top.lower, sum.lower, rows.reference.lower)};
    rows.sum = {0.25f * sum.upper * factor.upper, 0.25f * sum.lower * factor.lower};
    scale_rows(scores, factor);
    return true;
  }

  // ---- the walk over an item's key blocks

  struct Block {
    int index;
    bool hides;  // pairs of it may be hidden
    bool is_last;
    SeenBlock known;
  };

  // Scores of a block with the product of the block to its right, up to the scores' arrival. What
  // is known of its pairs is asked for behind the products, which wait for nothing so.
  template <class Describe>
  SIRDAR_DEVICE Terms issue_block(Describe describe, Block& block) {
    constexpr bool kAsksLate = config.has_mask_mod && !kReadsBias;
    Terms terms;
    if constexpr (!kAsksLate) block = describe();
    load_bias(item, block.index, terms);
    wait_k();
    wait_turn();
    ptx::wgmma_fence();
    issue_qk(q_ring.stage, Flag<false>{});
    wait_v();
    issue_pv();
    pass_turn();
    if constexpr (kAsksLate) block = describe();
    load_seen(block.known, terms);
    take_bias(terms);
    if (block.hides) find_seen(item, block.known, terms);
    if constexpr (config.overlaps) {
      ptx::wgmma_wait_group<1>();
    } else {
      ptx::wgmma_wait_group<0>();
      ptx::registers_ready(out);
    }
    ptx::registers_ready(scores);
    return terms;
  }
  SIRDAR_DEVICE void finish_block() {
    pack_weights(Flag<false>{});
    release_previous_out();
  }

  template <bool kMayHide, class Describe>
  SIRDAR_DEVICE bool online_block(Describe describe) {
    Block block{};
    const Terms terms = issue_block(describe, block);
    make_logits(scores, item, block.index, terms);
    if (kMayHide && block.hides) hide(scores, item, block.index, terms);
    RowPair factor;
    online_update<config, kThreshold>(scores, scale, rows, factor);
    set_first_limits(block.index);
    release_k();
    if (block.is_last) release_q();
    hold_behind(rows.sum);
    wait_out();
    release_v();
    scale_rows(out, factor);
    finish_block();
    return block.is_last;
  }

  // A block that hides takes the running maximum.
  template <bool kMayHide, class Describe>
  SIRDAR_DEVICE bool guarded_block(Describe describe) {
    Block block{};
    const Terms terms = issue_block(describe, block);
    const bool hides = kMayHide && block.hides;
    const bool is_classic = (hides && !kHidesFirst) || is_classic_now(hides);
    if constexpr (kStagesBias) {
      // What is NaN where the bias hides shows in the sums, and is scored again.
      make_logits<false>(scores, item, block.index, terms);
    } else if constexpr (!kAddsAlibiLast && !kCapsLast) {
      make_logits(scores, item, block.index, terms);
    }
    RowPair factor{1, 1};
    const auto hide_some = [&] {
      if (hides) hide(scores, item, block.index, terms);
    };
    const bool moved = guarded_softmax(block.index, is_classic, hide_some, factor);
    if (block.is_last) release_q();
    wait_out();
    if (moved) scale_rows(out, factor);
    release_v();
    release_k();
    finish_block();
    return block.is_last;
  }

  // Whether it was the item's last.
  template <bool kMayHide, class Describe>
  SIRDAR_DEVICE bool any_block(Describe describe) {
    if constexpr (config.softmax == Softmax::guarded) {
      return guarded_block<kMayHide>(describe);
    } else {
      return online_block<kMayHide>(describe);
    }
  }

  // Key blocks [begin, end) hide nothing from this warpgroup.
  struct WholeBlocks {
    int begin, end;
  };
  SIRDAR_DEVICE WholeBlocks whole_blocks() const {
    const KeyBounds<config> bounds = bounds_of(item);
    return {(bounds.lo(last_query_row(item)) + kN - 1) / kN, bounds.hi(first_query_row(item)) / kN};
  }

  // Only the blocks that something is seen of.
  SIRDAR_DEVICE void walk_seen() {
    const WholeBlocks whole = whole_blocks();
    if (num_blocks == 1) return;
    while (!any_block<true>([&] {
      if constexpr (kReadsBias) wait_k();  // asked for before the products
      const SeenBlock known = known_block();
      const bool hides =
          known.tile != SeenBlock::kAll || known.index >= whole.end || known.index < whole.begin;
      return Block{known.index, hides, known.index == item.first_block, known};
    })) {
    }
  }

  // One text for blocks that hide and others is compiled sooner; with four warpgroups its loop
  // would spill.
  SIRDAR_DEVICE void walk() {
    if constexpr (config.has_mask_mod) return walk_seen();
    const int first = item.first_block;
    int block = first + num_blocks - 2;  // the weights of block + 1 are in registers
    const auto at = [&](bool hides) {
      return [=] { return Block{block, hides, block == first, {}}; };
    };
    if constexpr (config.mask == MaskForm::full) {
      for (; block >= first; --block) any_block<false>(at(false));
    } else {
      const WholeBlocks whole = whole_blocks();
      if constexpr (kWarpgroups <= 2) {
        for (; block >= first; --block) {
          any_block<true>(at(block >= whole.end || (kHasLo && block < whole.begin)));
        }
        return;
      }
      for (; block >= first && block >= whole.end; --block) online_block<true>(at(true));
      const int begin = kHasLo ? ptx::max_of(first, whole.begin) : first;
      for (; block >= begin; --block) any_block<false>(at(false));
      if constexpr (kHasLo) {
        for (; block >= first; --block) online_block<true>(at(true));
      }
    }
  }

  // ---- borders between items

  // The normalisers of the item's rows, when all of its weights are known; stores what is told of
  // its rows. While a product runs, so that nobody waits for it.
  SIRDAR_DEVICE RowPair end_rows() const;

  template <class Half>
  SIRDAR_DEVICE void start(Half half) {
    const int block = item.first_block + num_blocks - 1;
    Terms terms;
    load_bias(item, block, terms);
    ptx::registers_ready(scores);
    ptx::wgmma_fence();
    issue_qk(q_ring.stage, half);
    pass_turn();
    const SeenBlock known = known_block();
    load_seen(known, terms);
    take_bias(terms);
    find_seen(item, known, terms);
    ptx::wgmma_wait_group<0>();
    ptx::registers_ready(scores);
    first_softmax(item, num_blocks, terms, rows, half);
    release_k();
    pack_weights(half);
  }

  // Whole regions from issue to wait exist twice: ptxas serialises a wgmma under a branch.
  template <class Half>
  SIRDAR_DEVICE RowPair cross(int next_buffer, const WorkItem& next, int blocks, RowState& state,
                              Half half) {
    const int block = next.first_block + blocks - 1;
    Terms terms;
    load_bias(next, block, terms);
    wait_turn();
    ptx::wgmma_fence();
    issue_qk(next_buffer, half);
    wait_v();
    issue_pv();
    pass_turn();
    const SeenBlock known = known_block();
    load_seen(known, terms);
    take_bias(terms);
    find_seen(next, known, terms);
    const RowPair inverse = end_rows();
    ptx::wgmma_wait_group<1>();
    ptx::registers_ready(scores);
    first_softmax(next, blocks, terms, state, half);
    release_k();
    hold_behind(state.sum);
    wait_out();
    release_v();
    pack_weights(half);  // before the epilogue, so that the scores are dead during it
    return inverse;
  }

  SIRDAR_DEVICE RowPair finish_last() {
    wait_v();
    wait_turn();
    issue_pv();
    pass_turn();
    const RowPair inverse = end_rows();
    wait_out();
    release_v();
    return inverse;
  }

  // An item's first scores, where none of the item before are in flight.
  SIRDAR_DEVICE void begin() {
    num_blocks = own_blocks(item);
    skip_k(item.num_blocks - num_blocks);
    wait_k();
    wait_turn();
    if (needs_half(item, num_blocks)) {
      start(Flag<config.trim == 2>{});
    } else {
      start(Flag<false>{});
    }
    set_first_limits(item.first_block + num_blocks - 1);
    skip_v(item.num_blocks - num_blocks);
    if (num_blocks == 1) release_q();
  }

  SIRDAR_DEVICE void run();
  SIRDAR_DEVICE void run_across();
  SIRDAR_DEVICE void run_apart();
};

}  // namespace sirdar::sm90

#include "cuda/sm90/forward/epilogue.cuh"
