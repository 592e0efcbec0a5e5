// Pairs one by one, from global memory and in fp32: for gradients that are made again
// (restore.cuh), and for rows whose softmax is (level.cuh).
#pragma once

#include "cuda/sm90/backward/modify.cuh"
#include "cuda/sm90/backward/peaks.cuh"
#include "cuda/sm90/backward/work.cuh"

namespace sirdar::sm90 {

// A pair as the gradients need it.
struct ExactPair {
  bool is_seen;
  float weight, product;  // P, and dS times the slopes of the logit
};

// Who makes a pair: each lane its own; the same, with more of the rows asked for at one time, which
// takes registers; or all lanes the same one.
enum class PairsBy { lane, lane_ahead, warp };

// Pairs of a query head and its K/V head.
template <BackwardConfig config, class Modification, PairsBy by = PairsBy::lane>
struct ExactPairs {
  const BackwardParams& params;
  const Modification& modification;
  Sequence sequence;
  int batch, head;

  // Of row `row` of a sequence, as it lies in a ragged or a dense tensor.
  SIRDAR_DEVICE long long offset(const RowView& view, bool is_query, int row) const {
    const bool is_ragged = (is_query ? params.cu_seqlens_q : params.cu_seqlens_k).data != nullptr;
    const int of_head = is_query ? head : head / params.group_size;
    const int begin = is_query ? sequence.q.begin : sequence.k.begin;
    return (is_ragged ? 0 : batch) * view.stride_batch + of_head * view.stride_head +
           (begin + row) * view.stride_row;
  }
  SIRDAR_DEVICE const uint16_t* at(const RowView& view, bool is_query, int row) const {
    return static_cast<const uint16_t*>(view.data) + offset(view, is_query, row);
  }

  SIRDAR_DEVICE static FloatPair two_of(const uint16_t* elements) {
    return unpack<config.element>(ptx::load_constant(reinterpret_cast<const uint32_t*>(elements)));
  }
  template <int kColumns>
  SIRDAR_DEVICE static float dot(const uint16_t* a, const uint16_t* b) {
    float sum = 0;
    if constexpr (by == PairsBy::warp) {
      SIRDAR_UNROLL
      for (int c = 2 * (ptx::thread_idx_x() % 32); c < kColumns; c += 64) {
        const FloatPair x = two_of(a + c), y = two_of(b + c);
        sum = ptx::fma_of(x.low, y.low, sum);
        sum = ptx::fma_of(x.high, y.high, sum);
      }
      SIRDAR_UNROLL
      for (int mask = 1; mask < 32; mask *= 2) sum += ptx::shfl_xor(sum, mask);
      return sum;
    }
    constexpr int kAhead = by == PairsBy::lane_ahead && kColumns % 32 == 0 ? 4 : 1;
    SIRDAR_NO_UNROLL
    for (int first = 0; first < kColumns; first += 8 * kAhead) {
      ptx::Int4 x[kAhead], y[kAhead];
      SIRDAR_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        x[i] = ptx::load_constant_int4(a + first + 8 * i);
        y[i] = ptx::load_constant_int4(b + first + 8 * i);
      }
      SIRDAR_UNROLL
      for (int i = 0; i < kAhead; ++i) sum += dot_of_eight<config.element>(x[i], y[i]);
    }
    return sum;
  }

  // Whether structured masks and lengths show it.
  SIRDAR_DEVICE bool is_within(int row, int key) const {
    if (row >= sequence.q.length || key >= sequence.k.length) return false;
    const BackwardBounds<config> bounds = bounds_of<config>(params, sequence);
    return key >= bounds.lo(row) && key < bounds.hi(row);
  }

  SIRDAR_DEVICE ExactPair pair(int row, int key) const {
    ExactPair pair{false, 0, 0};
    if (!is_within(row, key)) return pair;
    const float lse = static_cast<const float*>(params.lse.data)[offset(params.lse, true, row)];
    if (lse == kMinusInfinity) return pair;
    const auto of_row = begin_row(row);
    const auto of_key = begin_key(key);
    float bias = 0;
    if (!is_shown(of_row, of_key, row, key, bias)) return pair;
    pair.is_seen = true;
    const long long index = place_of_row(row);
    const float score = product(row, key);
    const float dp =
        params.start_delta[index] +
        dot<config.head_dim_v>(at(params.dout_rows, true, row), at(params.v_rows, false, key));
    if constexpr (!is_modified(config)) {
      pair.weight = ptx::exp2_approx((params.start_lse[index] + score) * params.scale_log2);
      pair.product = pair.weight * dp;
    } else {
      const Logit logit = logit_of(of_row, of_key, row, key, bias, score);
      const RowLevel level = is_far<config>(lse) ? params.levels[index] : RowLevel{lse, 1};
      weigh(logit, level, dp, pair);
    }
    return pair;
  }

  // Of a pair that is seen its logit; of others minus infinity.
  SIRDAR_DEVICE double logit(int row, int key) const {
    if (!is_within(row, key)) return kMinusInfinity;
    const auto of_row = begin_row(row);
    const auto of_key = begin_key(key);
    float bias = 0;
    if (!is_shown(of_row, of_key, row, key, bias)) return kMinusInfinity;
    return logit_of(of_row, of_key, row, key, bias, product(row, key)).value;
  }

  // A row's among those that the workspace has numbers of.
  SIRDAR_DEVICE long long place_of_row(int row) const {
    return tile_index(params, sequence, head, 0) * config.block_m + row;
  }

 private:
  static constexpr bool kHasExpression = config.has_score_mod || config.has_mask_mod;

  SIRDAR_DEVICE auto begin_row(int row) const {
    if constexpr (kHasExpression) {
      return modification.begin_row(batch, head, row, row + sequence.k.length - sequence.q.length);
    } else {
      return Nothing{};
    }
  }
  SIRDAR_DEVICE auto begin_key(int key) const {
    if constexpr (kHasExpression) {
      return modification.begin_key(batch, head, key);
    } else {
      return Nothing{};
    }
  }

  // Whether masks that read data show it too. `bias` becomes what is added to its score.
  template <class Row, class Key>
  SIRDAR_DEVICE bool is_shown(const Row& of_row, const Key& of_key, int row, int key,
                              float& bias) const {
    if constexpr (config.has_mask_mod) {
      if (!modification.visible(of_row, of_key)) return false;
    }
    if constexpr (config.bias != Bias::none) {
      const TilePlace at{batch, head, row, key, sequence.q.length, sequence.k.length};
      bias = TileBias<config>::Element::value(
          ptx::load_constant(TileBias<config>::address(params, at, 0, 0)));
      return bias != kMinusInfinity;
    }
    return true;
  }

  SIRDAR_DEVICE float product(int row, int key) const {
    return dot<config.head_dim>(at(params.q_rows, true, row), at(params.k_rows, false, key));
  }

  struct Logit {
    double value;            // in fp32 a term of 1e7 would leave nothing of the others
    float slope, cap_slope;  // by the score before score_mod; of the soft-cap
  };
  template <class Row, class Key>
  SIRDAR_DEVICE Logit logit_of(const Row& of_row, const Key& of_key, int row, int key, float bias,
                               float dot) const {
    float score = params.scale * dot;
    Logit logit{0, 1, 1};
    if constexpr (config.has_softcap) {
      const float x = dot * params.softcap_factor;
      const float e = language::exp(-2.0f * ptx::absolute(x)), inverse = 1.0f / (1.0f + e);
      const float far = ptx::fma_of(-2.0f * e, inverse, 1.0f);
      score = params.softcap * (ptx::absolute(x) < 0.65f ? language::tanh(x) : x < 0 ? -far : far);
      logit.cap_slope = 4.0f * e * inverse * inverse;
    }
    logit.value = static_cast<double>(score) + static_cast<double>(bias);
    if constexpr (config.has_alibi) {
      const int distance = row + sequence.k.length - sequence.q.length - key;
      const float slope = ptx::load_constant(params.alibi + batch * params.stride_alibi_batch +
                                             head * params.stride_alibi_head);
      logit.value -= static_cast<double>(slope) *
                     static_cast<double>(ptx::absolute(static_cast<float>(distance)));
    }
    if constexpr (config.has_score_mod) {
      const auto rounded = static_cast<float>(logit.value);
      logit.slope = modification.slope(of_row, of_key, rounded);
      logit.value = static_cast<double>(modification.score(of_row, of_key, rounded));
    }
    return logit;
  }

  // What the row-by-row backward computes (cuda/rows/backward/pairs.cuh): a dS of 0 stays 0, and
  // what a logit does not depend on gets nothing of a NaN.
  SIRDAR_DEVICE static void weigh(const Logit& logit, const RowLevel& level, float dp,
                                  ExactPair& pair) {
    pair.weight =
        level.weight * ptx::exp2_approx(static_cast<float>(logit.value - level.base) * kLog2e);
    pair.product = pair.weight * dp;
    if constexpr (config.has_score_mod) {
      pair.product = language::through_slope(pair.product, logit.slope);
    }
    if constexpr (config.has_softcap) {
      if (pair.product != 0.0f) pair.product *= logit.cap_slope;
    }
  }
};

}  // namespace sirdar::sm90
