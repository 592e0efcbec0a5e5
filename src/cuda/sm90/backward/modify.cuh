// From scores to weights where logits are more than a multiple of them: soft-cap, a bias, ALiBi and
// the caller's expression, whose slopes dS is multiplied by, and pairs that masks hide.
#pragma once

#include "cuda/expression/modification.cuh"
#include "cuda/sm90/backward/peaks.cuh"
#include "cuda/sm90/backward/remainders.cuh"
#include "cuda/sm90/backward/walk.cuh"
#include "cuda/sm90/forward/soft_cap.h"
#include "cuda/sm90/fragment.cuh"
#include "cuda/sm90/lanes.cuh"
#include "ptx/all.cuh"

namespace sirdar::sm90 {

// A launch with a modification: the kernel's parameters, then the modification's.
template <class Modification>
struct ModifiedBackwardParams {
  BackwardParams backward;
  Modification modification;
};

// A thread's part of a score tile: keys `key` and key + 8, queries row + column_of(i). Positions in
// the sequence, which may lie past its end.
struct TilePlace {
  int batch, head;  // of the queries
  int row, key;
  int seqlen_q, seqlen_k;
};

struct Nothing {};

template <Bias kForm>
struct StoredBias {
  using Type = float;
};
template <>
struct StoredBias<Bias::bf16> {
  using Type = language::Bf16;
};
template <>
struct StoredBias<Bias::fp16> {
  using Type = language::Fp16;
};

// A thread's entries of a tile that TMA brought, of two groups of eight queries at a time. 16 bits:
// a matrix of eight queries and keys, transposed, is what the accumulators of S^T hold of it.
template <BackwardConfig config>
struct BiasStage {
  using Element = language::ElementOf<typename StoredBias<config.bias>::Type>;
  static constexpr bool kIsWide = config.bias == Bias::fp32;
  static constexpr int kKeys = kIsWide ? 32 : 64;  // of a row of 128 bytes

  uint32_t start;  // where this lane begins; the swizzle's bits of it are those of its rows
  uint32_t words[kIsWide ? 1 : 4];

  // `tile`: of the warpgroup.
  SIRDAR_DEVICE BiasStage(uint32_t tile, int warp, int lane) {
    const int key = 16 * warp % kKeys;
    tile += 16 * warp / kKeys * (config.block_m * 128);
    if constexpr (kIsWide) {
      const int row = 2 * (lane % 4), own = key + lane / 4;
      start = tile + row * 128 + (((own / 4) ^ row) << 4) + own % 4 * 4;
    } else {
      const int row = lane / 16 * 8 + lane % 8, piece = key / 8 + lane / 8 % 2;
      start = tile + row * 128 + ((piece ^ (lane % 8)) << 4);
    }
  }
  // Before at() of words 4 pair to 4 pair + 3.
  SIRDAR_DEVICE void fetch(int pair) {
    if constexpr (!kIsWide) ptx::ldmatrix_x4_trans(words, start + pair * (16 * 128));
  }
  // Of score register i.
  SIRDAR_DEVICE float at(int i) const {
    if constexpr (kIsWide) {
      const uint32_t own = start ^ ((is_lower_row(i) ? 32 : 0) + (i % 2) * 16);
      return ptx::float_of(ptx::load_shared(own + column_of(i) * 128));
    } else {
      return Element::value(
          static_cast<typename Element::Stored>(words[i / 2 % 4] >> (16 * (i % 2))));
    }
  }
};

// A bias at a thread's pairs of a tile, which the thread reads from memory. Entries of 16 bits are
// asked for while the scores are multiplied, where there are registers for them until then.
template <BackwardConfig config>
struct TileBias {
  static constexpr bool kIsAsked = (config.bias == Bias::bf16 || config.bias == Bias::fp16) &&
                                   config.block_m == 64 && !has_slopes(config);
  using Element = language::ElementOf<typename StoredBias<config.bias>::Type>;
  using Stored = typename Element::Stored;

  uint32_t words[kIsAsked ? config.block_m / 4 : 1];  // of two queries of one key

  // What lies past the end of the sequence is read from its last row and key, and not used.
  SIRDAR_DEVICE static const Stored* address(const BackwardParams& params, const TilePlace& at,
                                             int lower, int column) {
    const BiasView& view = params.bias;
    const int key = ptx::min_of(at.key + 8 * lower, at.seqlen_k - 1);
    const int row = ptx::min_of(at.row + column, at.seqlen_q - 1);
    return static_cast<const Stored*>(view.data) + at.batch * view.stride_batch +
           at.head * view.stride_head + key * view.stride_key + row * view.stride_row;
  }
  SIRDAR_DEVICE void load(const BackwardParams& params, const TilePlace& at) {
    if constexpr (kIsAsked) {
      SIRDAR_UNROLL
      for (int word = 0; word < config.block_m / 4; ++word) {
        const int lower = word % 2, column = column_of(2 * word);
        const uint32_t low = ptx::load_constant(address(params, at, lower, column));
        const uint32_t high = ptx::load_constant(address(params, at, lower, column + 1));
        words[word] = low | high << 16;
      }
    }
  }
  // Of score register i.
  SIRDAR_DEVICE float at(const BackwardParams& params, const TilePlace& place, int i) const {
    if constexpr (kIsAsked) {
      return Element::value(static_cast<Stored>(words[i / 2] >> (16 * (i % 2))));
    } else {
      return Element::value(
          ptx::load_constant(address(params, place, is_lower_row(i) ? 1 : 0, column_of(i))));
    }
  }
};

template <BackwardConfig config, bool kIsStaged>
struct BiasChoice {
  using Type = TileBias<config>;
};
template <BackwardConfig config>
struct BiasChoice<config, true> {
  using Type = BiasStage<config>;
};
template <BackwardConfig config>
using BiasSource = typename BiasChoice<config, (config.num_stages_bias > 0)>::Type;

// Logits of one tile of a thread.
template <BackwardConfig config, class Modification>
struct TileLogits {
  // Of a pair: its weight, and that times the slopes of its logit.
  struct Weight {
    float plain, sloped;
  };
  struct Logit {
    float value, slope;
  };

  const BackwardParams& params;
  const Modification& modification;
  const TilePlace& at;
  BiasSource<config> biases;
  float alibi_slope = 0, distance = 0;  // of the first pair

  SIRDAR_DEVICE TileLogits(const BackwardParams& p, const Modification& m, const TilePlace& place,
                           const BiasSource<config>& tile_bias)
      : params(p), modification(m), at(place), biases(tile_bias) {
    if constexpr (config.has_alibi) {
      alibi_slope =
          params.alibi[at.batch * params.stride_alibi_batch + at.head * params.stride_alibi_head];
      if constexpr (!has_slopes(config)) alibi_slope *= kLog2e;
      distance = static_cast<float>(at.row + at.seqlen_k - at.seqlen_q - at.key);
    }
  }

  SIRDAR_DEVICE auto begin_key(int key) const {
    if constexpr (config.has_score_mod) {
      return modification.begin_key(at.batch, at.head, key);
    } else {
      return Nothing{};
    }
  }
  SIRDAR_DEVICE auto begin_row(int row) const {
    if constexpr (config.has_score_mod) {
      return modification.begin_row(at.batch, at.head, row, row + at.seqlen_k - at.seqlen_q);
    } else {
      return Nothing{};
    }
  }

  // Score times scale, soft-capped.
  template <bool kSaturates>
  SIRDAR_DEVICE Logit capped(float score) const {
    if constexpr (!config.has_softcap) return {score * params.scale, 1.0f};
    const float factor = params.softcap_factor;
    if constexpr (kSaturates) {  // by e = exp(-2 |x|): exact where both saturate
      const float x = score * factor;
      const float e = ptx::exp2_approx(ptx::absolute(x) * (-2 * kLog2e));
      const float inverse = ptx::reciprocal_approx(1.0f + e);
      const float size = ptx::fma_of(-2.0f * e, inverse, 1.0f);
      return {params.softcap * (x < 0.0f ? -size : size), 4.0f * e * inverse * inverse};
    }
    constexpr CapPolynomial kCap = kCapFar;
    const float square_factor = factor * factor;
    const float c0 = kCap.c0 * params.scale, c1 = kCap.c1 * square_factor * params.scale,
                c2 = kCap.c2 * square_factor * square_factor * params.scale;
    const float square = score * score;
    const float logit = score * ptx::fma_of(square, ptx::fma_of(square, c2, c1), c0);
    return {logit, ptx::fma_of(logit * params.softcap_slope, logit, 1.0f)};
  }

  // Of score register i. What a bias of -inf hides may be NaN by its score: it is made again then.
  template <bool kSaturates, class Row, class Key>
  SIRDAR_DEVICE Weight weight(float score, float start, int i, const Row& of_row,
                              const Key& of_key) const {
    const int lower = is_lower_row(i) ? 1 : 0, column = column_of(i);
    float bias = 0;
    if constexpr (config.num_stages_bias > 0) {
      bias = biases.at(i);
    } else if constexpr (config.bias != Bias::none) {
      bias = biases.at(params, at, i);
    }
    const float far = ptx::absolute(distance + static_cast<float>(column - 8 * lower));
    if constexpr (!has_slopes(config)) {
      float exponent = exponent_of<config>(params, score);
      if constexpr (config.bias != Bias::none) exponent = ptx::fma_of(bias, kLog2e, exponent);
      if constexpr (config.has_alibi) exponent = ptx::fma_of(-alibi_slope, far, exponent);
      const float plain = ptx::exp2_approx(exponent);
      return {plain, plain};
    }
    Logit logit = capped<kSaturates>(score);
    if constexpr (config.bias != Bias::none) logit.value += bias;
    if constexpr (config.has_alibi) logit.value = ptx::fma_of(-alibi_slope, far, logit.value);
    float slope = 1.0f;
    if constexpr (config.has_score_mod) {
      slope = modification.slope(of_row, of_key, logit.value);
      logit.value = modification.score(of_row, of_key, logit.value);
    }
    Weight weight;
    weight.plain = ptx::exp2_approx(ptx::fma_of(logit.value, kLog2e, start));
    if constexpr (config.bias != Bias::none && config.has_score_mod) {
      weight.plain = bias == kMinusInfinity ? 0.0f : weight.plain;
    }
    weight.sloped = weight.plain;
    if constexpr (config.has_score_mod) {
      weight.sloped = language::through_slope(weight.plain, slope);
    }
    if constexpr (config.has_softcap) weight.sloped *= logit.slope;
    return weight;
  }

  // Two queries of one key a word, as products take them.
  template <bool kSaturates>
  SIRDAR_DEVICE void make(const float (&score)[config.block_m / 2], uint32_t starts,
                          uint32_t (&weights)[config.block_m / 4],
                          uint32_t (&kept)[config.block_m / 4]) {
    const auto upper_key = begin_key(at.key), lower_key = begin_key(at.key + 8);
    SIRDAR_UNROLL
    for (int group = 0; group < config.block_m / 8; ++group) {
      if constexpr (config.num_stages_bias > 0) {
        if (group % 2 == 0) biases.fetch(group / 2);
      }
      ptx::Float2 start{0, 0};
      if constexpr (has_slopes(config)) start = ptx::load_shared_float2(starts + 32 * group);
      const auto first_row = begin_row(at.row + 8 * group),
                 second_row = begin_row(at.row + 8 * group + 1);
      SIRDAR_UNROLL
      for (int lower = 0; lower < 2; ++lower) {
        const int word = 2 * group + lower;
        const auto& of_key = lower == 1 ? lower_key : upper_key;
        const Weight first =
            weight<kSaturates>(score[2 * word], start.x, 2 * word, first_row, of_key);
        const Weight second =
            weight<kSaturates>(score[2 * word + 1], start.y, 2 * word + 1, second_row, of_key);
        weights[word] = word_of<config>(first.plain, second.plain, kept[word]);
        if constexpr (has_slopes(config)) {
          kept[word] = pack<config.element>(first.sloped, second.sloped);
        }
      }
    }
  }
};

// Score registers to words of weights. `kept`: with slopes words of weights times those, or what
// rounding took. `starts`: in shared memory, what the exponents of the thread's queries begin with.
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE void make_weights(const BackwardParams& params, const Modification& modification,
                                const TilePlace& at, const BiasSource<config>& bias,
                                const float (&score)[config.block_m / 2], uint32_t starts,
                                uint32_t (&weights)[config.block_m / 4],
                                uint32_t (&kept)[config.block_m / 4]) {
  TileLogits<config, Modification> logits(params, modification, at, bias);
  if constexpr (config.has_softcap) {
    const float factor = ptx::absolute(params.softcap_factor);
    if (!ptx::any_sync(largest_of(score) * factor > kCapFar.limit)) {
      logits.template make<false>(score, starts, weights, kept);
      return;
    }
  }
  logits.template make<true>(score, starts, weights, kept);
}

struct RowRange {
  int begin, end;
};
// The queries that see a key, counted from the thread's first.
template <class Bounds>
SIRDAR_DEVICE RowRange rows_that_see(const Bounds& bounds, const TilePlace& at, int key) {
  if (key >= at.seqlen_k) return {0, 0};
  return {bounds.row_begin(key) - at.row, ptx::min_of(bounds.row_end(key), at.seqlen_q) - at.row};
}

// Which queries see a thread's two keys: bit c is that of the thread's first query plus c.
template <int kQueries>
struct SeenQueries {
  static constexpr int kWords = kQueries / 32;
  uint32_t upper[kWords], lower[kWords];

  SIRDAR_DEVICE void show(bool is_lower, const RowRange& range) {
    SIRDAR_UNROLL
    for (int word = 0; word < kWords; ++word) {
      (is_lower ? lower : upper)[word] =
          bits_from_to(range.begin - 32 * word, range.end - 32 * word);
    }
  }
  // Makes 0 of what belongs to other pairs.
  SIRDAR_DEVICE void clear(uint32_t (&pairs)[kQueries / 4]) const {
    SIRDAR_UNROLL
    for (int i = 0; i < kQueries / 4; ++i) {
      const int column = column_of(2 * i);
      const uint32_t bits = (is_lower_row(2 * i) ? lower : upper)[column / 32] >> (column % 32);
      pairs[i] &= ((bits & 1) != 0 ? 0xffffu : 0u) | ((bits & 2) != 0 ? 0xffff0000u : 0u);
    }
  }
};

// What a tile's masks show of a thread's two keys, as far as that is asked for before the scores
// are there.
template <BackwardConfig config>
struct ShownTile {
  static constexpr int kWords = config.block_m / 32;
  SeenQueries<config.block_m> seen{};  // without a value registers are lost to it

  // Where it is known. key: the thread's first, within the half.
  SIRDAR_DEVICE void load(const BackwardParams& params, int shown, int key, int lane) {
    if (shown < 0) return;
    const unsigned* const bits =
        params.walk.tiles + (static_cast<long long>(shown) * 64 + key) * kWords;
    SIRDAR_UNROLL
    for (int word = 0; word < kWords; ++word) {
      seen.upper[word] = ptx::load_written(bits + word) >> (2 * (lane % 4));
      seen.lower[word] = ptx::load_written(bits + 8 * kWords + word) >> (2 * (lane % 4));
    }
  }

  // Leaves of `seen` what the modification shows: a warp looks at a key and 32 queries at a time.
  // at: of the thread.
  template <class Modification>
  SIRDAR_DEVICE static void look(const Modification& modification, const TilePlace& at, int lane,
                                 SeenQueries<config.block_m>& seen) {
    const int row = at.row - 2 * (lane % 4) + lane, shift = at.seqlen_k - at.seqlen_q;
    typename Modification::Row rows[kWords];
    SIRDAR_UNROLL
    for (int word = 0; word < kWords; ++word) {
      rows[word] =
          modification.begin_row(at.batch, at.head, row + 32 * word, row + 32 * word + shift);
    }
    const auto own = modification.begin_key(at.batch, at.head, at.key - lane / 4 + lane % 16);
    SIRDAR_NO_UNROLL
    for (int pair = 0; pair < 8; ++pair) {
      const auto of_upper = from_lane(own, pair), of_lower = from_lane(own, pair + 8);
      SIRDAR_UNROLL
      for (int word = 0; word < kWords; ++word) {
        const uint32_t above = ptx::ballot_sync(modification.visible(rows[word], of_upper));
        const uint32_t below = ptx::ballot_sync(modification.visible(rows[word], of_lower));
        if (pair == lane / 4) {
          seen.upper[word] &= above >> (2 * (lane % 4));
          seen.lower[word] &= below >> (2 * (lane % 4));
        }
      }
    }
  }
};

// What of a tile is asked for while its scores are multiplied.
template <BackwardConfig config>
struct AskedTile {
  ShownTile<config> shown;
  TileBias<config> bias;
};

}  // namespace sirdar::sm90
