// One pair of a query and a key: whether it is visible, its logit, and what the loss's gradient is
// by its product, from the two dot products that it is made of.
#pragma once

#include "cuda/rows/backward/config.h"
#include "cuda/rows/backward/params.h"
#include "cuda/rows/staged.cuh"
#include "cuda/rows/warp.cuh"

namespace sirdar::rows {

// A query head of a sequence, and the K/V head that it reads.
struct Head {
  int batch, head, head_kv;
  Sequence q, k;

  SIRDAR_DEVICE static Head of(const BackwardParams& params, int batch, int head) {
    return {batch, head, head / params.group_size, params.query.sequence(batch),
            params.key.sequence(batch)};
  }
  SIRDAR_DEVICE int shift() const { return static_cast<int>(k.length - q.length); }
};

// Where a number of a row stands among those of its head's rows.
SIRDAR_DEVICE long long row_place(const Extents& extents, const Sequence& sequence, int batch,
                                  long long row) {
  return (extents.cu_seqlens.present() ? sequence.begin : batch * extents.seqlen) + row;
}

SIRDAR_DEVICE bool takes_part(const QueryState& state) { return state.base != language::kInfinity; }

struct IntRange {
  int begin, end;
};

// Of a pair.
struct Logit {
  float score;  // before score_mod
  float value;
  float slope;  // d score / d product of query and key
};
struct PairGradient {
  float value;    // d loss / d logit
  float weight;   // with dropout: what dv gets of dout
  float score;    // d loss / d score, and so what dbias gets
  float product;  // d loss / d product of query and key
};

template <BackwardConfig config, class Modification>
struct Pairs {
  const BackwardParams& params;
  const Modification& modification;
  const Head& at;

  SIRDAR_DEVICE StructuredMask mask() const {
    StructuredMask mask = params.mask;
    mask.length.seqlen_k = at.k.length;
    mask.causal.shift = mask.window.shift = mask.chunk.shift =
        params.is_top_left != 0 ? 0 : at.shift();
    return mask;
  }
  SIRDAR_DEVICE IntRange keys_of(int row) const {
    const StructuredMask shown = mask();
    return {static_cast<int>(shown.lo(row)), static_cast<int>(shown.hi(row))};
  }
  SIRDAR_DEVICE auto begin_row(int row) const {
    if constexpr (kIsModified<Modification>) {
      return modification.begin_row(at.batch, at.head, row, row + at.shift());
    } else {
      return Nothing{};
    }
  }
  SIRDAR_DEVICE auto begin_key(int key) const {
    if constexpr (kIsModified<Modification>) {
      return modification.begin_key(at.batch, at.head, key);
    } else {
      return Nothing{};
    }
  }

  // Of a pair that the structured masks show. `bias` becomes what is added to its score.
  template <class Row, class Key>
  SIRDAR_DEVICE bool is_visible(const Row& of_row, const Key& of_key, int row, int key,
                                float& bias) const {
    if constexpr (Modification::kMasks) {
      if (!modification.visible(of_row, of_key)) return false;
    }
    if constexpr (config.bias != Element::none) {
      const PairView& view = params.bias;
      bias = load_number<config.bias>(static_cast<const StoredOf<config.bias>*>(view.data) +
                                      at.batch * view.stride_batch + at.head * view.stride_head +
                                      row * view.stride_row + key * view.stride_key);
      return bias != kMinusInfinity;
    }
    return true;
  }

  template <class Row, class Key>
  SIRDAR_DEVICE Logit logit(const Row& of_row, const Key& of_key, int row, int key, float bias,
                            float product) const {
    Logit logit{params.scale * product, 0, params.scale};
    if (params.softcap > 0) cap(logit);
    if constexpr (config.bias != Element::none) logit.score += bias;
    if (params.alibi != nullptr) {
      const float slope = ptx::load_constant(params.alibi + at.batch * params.stride_alibi_batch +
                                             at.head * params.stride_alibi_head);
      const int distance = language::absolute(row + at.shift() - key);
      logit.score -= slope * static_cast<float>(distance);
    }
    logit.value = logit.score;
    if constexpr (Modification::kScores) {
      logit.value = modification.score(of_row, of_key, logit.score);
    }
    return logit;
  }

  // dout_v: the product of dout's row and the value.
  template <class Row, class Key>
  SIRDAR_DEVICE PairGradient gradient(const Row& of_row, const Key& of_key, int row, int key,
                                      const Logit& logit, float dout_v,
                                      const QueryState& state) const {
    float keep = 1;
    if constexpr (config.has_dropout) {
      const bool is_kept = params.dropout.keeps(at.batch, at.head, row, key);
      keep = is_kept ? params.keep_scale : 0.0f;
      dout_v *= keep;
    }
    const float weight = state.weight * language::exp(logit.value - state.base);
    const float dlogit = weight * (dout_v - state.delta);
    float dscore = dlogit;
    if constexpr (Modification::kScores) {
      dscore = language::through_slope(dlogit, modification.slope(of_row, of_key, logit.score));
    }
    return {dlogit, weight * keep, dscore, dscore == 0.0f ? 0.0f : dscore * logit.slope};
  }

 private:
  // By e = exp(-2 |x|): tanh is 1 - 2 e / (1 + e), its slope 4 e / (1 + e)^2, exact where both
  // saturate. tanh is rounded seldom: the weights feel each of its errors softcap times.
  SIRDAR_DEVICE void cap(Logit& logit) const {
    const float x = logit.score / params.softcap, size = language::absolute(x);
    const float e = language::exp(-2.0f * size), inverse = language::divide(1.0f, 1.0f + e);
    const float far = ptx::fma_of(-2.0f * e, inverse, 1.0f);
    const float signed_far = x < 0.0f ? -far : far;
    logit.score = params.softcap * (size < 0.65f ? language::tanh(x) : signed_far);
    logit.slope *= 4.0f * e * inverse * inverse;
  }
};

}  // namespace sirdar::rows
