// The rows of a score tile: maximum, exponentials, sums. A thread holds parts of two rows, r and
// r + 8 of its warp's sixteen, in the register order of wgmma; four lanes share a row.
// Everything is in units of log2: a weight is 2^(score * scale - reference).
#pragma once

#include "cuda/sm90/forward/config.h"
#include "cuda/sm90/forward/soft_cap.h"
#include "cuda/sm90/fragment.cuh"
#include "ptx/all.cuh"

namespace sirdar::sm90 {

// Above this a thread's sum moves the reference in any case. bf16 weights have the exponents of
// floats; fp16 weights must stay below 65504.
constexpr float guard_of(Element element) {
  return element == Element::bf16 ? 4294967296.0f : 16384.0f;
}

SIRDAR_DEVICE float quad_max(float x) {
  x = ptx::max_of(x, ptx::shfl_xor(x, 1));
  return ptx::max_of(x, ptx::shfl_xor(x, 2));
}
SIRDAR_DEVICE float quad_sum(float x) {
  x += ptx::shfl_xor(x, 1);
  return x + ptx::shfl_xor(x, 2);
}

// A pair of values, one per row of the thread.
struct RowPair {
  float upper, lower;
};

// invariant: reference is finite or -inf; sum is this thread's share.
struct RowState {
  RowPair reference{kMinusInfinity, kMinusInfinity};
  RowPair sum{0, 0};
};

// 2^x by multiply-adds instead of the special function unit [Zadouri26 3.1.2]: 2^n from the bits of
// a sum, 2^f, |f| <= 1/2, by the polynomial of least relative error. Below 2^-126 it is 0; NaN
// stays NaN. kIsBounded: x is below 128.
template <int kDegree, bool kIsBounded>
SIRDAR_DEVICE float exp2_polynomial(float x) {
  static_assert(kDegree >= 3 && kDegree <= 5);
  constexpr float kShift =
      12582912.0f + 127;  // 1.5 * 2^23, where a float's step is 1, and the bias
  x = ptx::max_or_nan(x, -127.0f);
  if constexpr (!kIsBounded) x = ptx::min_or_nan(x, 128.0f);
  const float shifted = x + kShift;
  const float f = x - (shifted - kShift);
  float y;
  if constexpr (kDegree == 3) {
    y = ptx::fma_of(0.05517167f, f, 0.24261113f);
    y = ptx::fma_of(y, f, 0.69326097f);
    y = ptx::fma_of(y, f, 0.99992806f);
  } else if constexpr (kDegree == 4) {
    y = ptx::fma_of(0.009570102f, f, 0.05591786f);
    y = ptx::fma_of(y, f, 0.24024744f);
    y = ptx::fma_of(y, f, 0.6931218f);
    y = ptx::fma_of(y, f, 0.9999993f);
  } else {
    y = ptx::fma_of(0.0013276472f, f, 0.009675541f);
    y = ptx::fma_of(y, f, 0.05550713f);
    y = ptx::fma_of(y, f, 0.2402212f);
    y = ptx::fma_of(y, f, 0.69314694f);
    y = ptx::fma_of(y, f, 1.0000001f);
  }
  // 0 for n = -127, infinity for 128: both as they should be, and NaN * anything is NaN.
  return y * ptx::float_of(ptx::bits_of(shifted) << 23);
}

// weights and their sums. The shape of the sums matters: pairs keep two FMAs with one reference
// side by side, and the second takes it from the operand reuse cache; the tensor core and the FMA
// pipe share register bandwidth (README.md, operand reuse).
template <ForwardConfig config, bool kIsBounded, int kCount>
SIRDAR_DEVICE void exponentiate(float (&scores)[kCount], float scale, RowPair reference,
                                RowPair& sum) {
  const auto exp2_of = [](int i, float x) {
    // Spread evenly over the registers.
    if (i * config.num_polynomial % 16 < config.num_polynomial) {
      return exp2_polynomial<polynomial_degree(config), kIsBounded>(x);
    }
    return ptx::exp2_approx(x);
  };
  SIRDAR_UNROLL
  for (int i = 0; i < kCount; i += 4) {
    scores[i] = exp2_of(i, ptx::fma_of(scores[i], scale, -reference.upper));
    scores[i + 1] = exp2_of(i + 1, ptx::fma_of(scores[i + 1], scale, -reference.upper));
    scores[i + 2] = exp2_of(i + 2, ptx::fma_of(scores[i + 2], scale, -reference.lower));
    scores[i + 3] = exp2_of(i + 3, ptx::fma_of(scores[i + 3], scale, -reference.lower));
    sum.upper += scores[i] + scores[i + 1];
    sum.lower += scores[i + 2] + scores[i + 3];
  }
}

// tanh(x): 1 - 2 / (1 + e^2x) saturates at both ends, and NaN stays NaN.
SIRDAR_DEVICE float saturated(float x) {
  return 1.0f - 2.0f * ptx::reciprocal_approx(1.0f + ptx::exp2_approx(x * (2 * kLog2e)));
}

// softcap * tanh(score * scale / softcap). Where all of a warp's scores are small beside the cap,
// as they nearly always are, by a polynomial: next to busy tensor cores the exponential and the
// reciprocal of the formula that saturates take longer than the products.
template <int kCount>
SIRDAR_DEVICE void cap_scores(float (&scores)[kCount], const CapFactors& cap, float softcap) {
  if (ptx::any_sync(largest_of(scores) > cap.largest)) {
    SIRDAR_UNROLL
    for (int i = 0; i < kCount; ++i) scores[i] = softcap * saturated(scores[i] * cap.factor);
    return;
  }
  SIRDAR_UNROLL
  for (int i = 0; i < kCount; ++i) {
    const float square = scores[i] * scores[i];
    scores[i] *= ptx::fma_of(square, ptx::fma_of(square, cap.c2, cap.c1), cap.c0);
  }
}

// exponentiate() of scores that are soft-capped on the way, where all of a warp's are smaller yet:
// fewer terms do, and the last of their multiply-adds takes the reference too. Scores are looked at
// on the way: squares are taken plus a constant that brings those below the limit to one exponent,
// and the exponents are gathered by "or", two a instruction. Four and four, and those together in
// the end: the assembler takes one long chain for what is waited for, and all squares before the
// first exponential. Where one differs the sums become infinite, as where weights overflow, and the
// block is done again.
template <bool kIsExact, int kCount>
SIRDAR_DEVICE void exponentiate_capped(float (&scores)[kCount], const CapTerms& cap,
                                       RowPair reference, RowPair& sum) {
  uint32_t exponents[kCount / 4] = {};
  SIRDAR_UNROLL
  for (int i = 0; i < kCount; i += 4) {
    SIRDAR_UNROLL
    for (int j = i; j < i + 4; ++j) {
      const float more = is_lower_row(j) ? -reference.lower : -reference.upper;
      const float square = ptx::fma_of(scores[j], scores[j], cap.center);
      exponents[i / 4] |= ptx::bits_of(square);
      const float last = kIsExact ? ptx::fma_of(square, cap.c2, cap.c1) : cap.c1;
      scores[j] = ptx::exp2_approx(ptx::fma_of(scores[j], ptx::fma_of(square, last, cap.c0), more));
    }
    sum.upper += scores[i] + scores[i + 1];
    sum.lower += scores[i + 2] + scores[i + 3];
  }
  uint32_t together = 0;
  for (const uint32_t four : exponents) together |= four;
  if (together >> 23 != cap.exponent) sum.upper = -kMinusInfinity;
}

// What ALiBi adds to the logits of a thread's two rows, in log2 units: -slope * |distance|, where
// `start` is the distance of the row to its first column.
struct AlibiRows {
  RowPair slopes, starts;

  template <bool kOneSided>
  SIRDAR_DEVICE float at(int i, RowPair plus) const {
    const float slope = is_lower_row(i) ? slopes.lower : slopes.upper;
    const float start = is_lower_row(i) ? starts.lower : starts.upper;
    const float column = static_cast<float>(column_of(i));
    const float more = is_lower_row(i) ? plus.lower : plus.upper;
    if constexpr (kOneSided) return ptx::fma_of(slope, column, ptx::fma_of(-slope, start, more));
    return ptx::fma_of(-slope, ptx::absolute(start - column), more);
  }
};

// exponentiate() of scores with ALiBi. In logits of their own it would take twice the additions,
// which take turns with the tensor cores (README.md, operand reuse).
template <bool kOneSided, int kCount>
SIRDAR_DEVICE void exponentiate(float (&scores)[kCount], float scale, const AlibiRows& alibi,
                                RowPair reference, RowPair& sum) {
  const RowPair minus{-reference.upper, -reference.lower};
  SIRDAR_UNROLL
  for (int i = 0; i < kCount; i += 4) {
    SIRDAR_UNROLL
    for (int j = i; j < i + 4; ++j) {
      scores[j] =
          ptx::exp2_approx(ptx::fma_of(scores[j], scale, alibi.template at<kOneSided>(j, minus)));
    }
    sum.upper += scores[i] + scores[i + 1];
    sum.lower += scores[i + 2] + scores[i + 3];
  }
}

// Scores of keys that a row does not see become -inf: columns outside [lo, hi), relative to the
// lane's own first column.
struct ColumnBounds {
  int lo_upper, hi_upper, lo_lower, hi_lower;
};
template <bool kHasLo, int kCount>
SIRDAR_DEVICE void mask_scores(float (&scores)[kCount], const ColumnBounds& bounds) {
  SIRDAR_UNROLL
  for (int i = 0; i < kCount; ++i) {
    const int column = column_of(i);
    const bool hidden = column >= (is_lower_row(i) ? bounds.hi_lower : bounds.hi_upper) ||
                        (kHasLo && column < (is_lower_row(i) ? bounds.lo_lower : bounds.lo_upper));
    scores[i] = hidden ? kMinusInfinity : scores[i];
  }
}

// Which of a thread's scores are seen, where masks come as bits. A row's columns that the lane has
// are neighbouring bits, two of each eight, and seven of them become predicates at once.
template <int kCount>
struct SeenScores {
  static constexpr int kWords = (kCount / 2 + 31) / 32;
  uint32_t upper[kWords], lower[kWords];

  SIRDAR_DEVICE static constexpr int bit_of(int i) { return i / 4 * 2 + (i & 1); }

  // Of a tile that cover_keys() has written; place: 4 times the thread's upper row in it, and the
  // lane among the four.
  SIRDAR_DEVICE void load(const unsigned* tile, int place) {
    load_row(tile, place, upper);
    load_row(tile, place + 32, lower);
  }
  SIRDAR_DEVICE static void load_row(const unsigned* tile, int place, uint32_t (&row)[kWords]) {
    if constexpr (kCount <= 32) {
      row[0] = ptx::load_written(reinterpret_cast<const uint16_t*>(tile) + place);
    } else {
      SIRDAR_UNROLL
      for (int word = 0; word < kWords; ++word) {
        row[word] = ptx::load_written(tile + place * kWords + word);
      }
    }
  }

  // Of columns before `column`.
  SIRDAR_DEVICE static uint32_t bits_before(int column, int word) {
    const int own = ptx::max_of(column - 128 * word, 0);
    return ptx::lowest_bits((own >> 2 & ~1) + ptx::min_of(own & 7, 2));
  }
  template <bool kHasLo>
  SIRDAR_DEVICE static SeenScores within(const ColumnBounds& bounds) {
    SeenScores seen;
    SIRDAR_UNROLL
    for (int word = 0; word < kWords; ++word) {
      seen.upper[word] = bits_before(bounds.hi_upper, word);
      seen.lower[word] = bits_before(bounds.hi_lower, word);
      if constexpr (kHasLo) {
        seen.upper[word] &= ~bits_before(bounds.lo_upper, word);
        seen.lower[word] &= ~bits_before(bounds.lo_lower, word);
      }
    }
    return seen;
  }

  // Others become -inf. Seven bits of a row's word after each other become predicates at once.
  SIRDAR_DEVICE void hide_others(float (&scores)[kCount]) const {
    SIRDAR_UNROLL
    for (int first = 0; first < kCount; first += 16) {
      hide_others(scores, upper, first);
      hide_others(scores, lower, first + 2);
    }
  }
  SIRDAR_DEVICE static void hide_others(float (&scores)[kCount], const uint32_t (&row)[kWords],
                                        int first) {
    SIRDAR_UNROLL
    for (int i = first; i < first + 16 && i < kCount; i += 4) {
      SIRDAR_UNROLL
      for (int j = i; j < i + 2; ++j) {
        const int bit = bit_of(j);
        const bool is_seen = (row[bit / 32] >> (bit % 32) & 1) != 0;
        scores[j] = is_seen ? scores[j] : kMinusInfinity;
      }
    }
  }
};

// Largest score of each row, in log2 units.
template <int kCount>
SIRDAR_DEVICE RowPair row_maxima(const float (&scores)[kCount], float scale) {
  float upper = kMinusInfinity, lower = kMinusInfinity;
  SIRDAR_UNROLL
  for (int i = 0; i < kCount; ++i) {
    if (is_lower_row(i)) {
      lower = ptx::max_of(lower, scores[i]);
    } else {
      upper = ptx::max_of(upper, scores[i]);
    }
  }
  return {quad_max(upper) * scale, quad_max(lower) * scale};
}

// Whether references follow weights that rule their rows (README.md). Beside soft-cap and masks
// that read data it would cost more; narrow heads have no registers for it beside parts of keys.
constexpr bool follows_rulers(const ForwardConfig& c) {
  const bool has_registers = !has_parts(c) || c.num_consumers <= 2;
  return c.softmax == Softmax::guarded && !c.has_softcap && !c.has_mask_mod && has_registers;
}

// A lane's share where all of a row's have the same, so that each of them knows what the row's is.
SIRDAR_DEVICE float spread_sum(float sum) { return 0.25f * quad_sum(sum); }

// The online update [Milakov18 alg. 3]: the reference becomes the running maximum; `factor` is what
// earlier sums and outputs are multiplied by. With kThreshold > 0 the reference stays while no row
// of the warp outgrew it by that much [Zadouri26 3.2]; weights are then up to 2^kThreshold.
template <ForwardConfig config, int kThreshold, int kCount>
SIRDAR_DEVICE void online_update(float (&scores)[kCount], float scale, RowState& state,
                                 RowPair& factor) {
  const RowPair block = row_maxima(scores, scale);
  RowPair next{ptx::max_of(state.reference.upper, block.upper),
               ptx::max_of(state.reference.lower, block.lower)};
  if constexpr (kThreshold > 0) {
    if (!ptx::any_sync(!(next.upper <= state.reference.upper + kThreshold &&
                         next.lower <= state.reference.lower + kThreshold))) {
      next = state.reference;
    }
  }
  // A row that has seen nothing yet has no reference; any will do for weights of 0.
  const RowPair usable{next.upper == kMinusInfinity ? 0.0f : next.upper,
                       next.lower == kMinusInfinity ? 0.0f : next.lower};
  factor = {ptx::exp2_approx(state.reference.upper - usable.upper),
            ptx::exp2_approx(state.reference.lower - usable.lower)};
  state.reference = next;
  state.sum.upper *= factor.upper;
  state.sum.lower *= factor.lower;
  exponentiate<config, true>(scores, scale, usable, state.sum);
  if constexpr (follows_rulers(config)) {
    state.sum = {spread_sum(state.sum.upper), spread_sum(state.sum.lower)};
  }
}

template <int kCount>
SIRDAR_DEVICE void scale_rows(float (&values)[kCount], RowPair factor) {
  SIRDAR_UNROLL
  for (int i = 0; i < kCount; ++i) values[i] *= is_lower_row(i) ? factor.lower : factor.upper;
}

// Moves a reference to a row's largest weight, if that is above 1, and to within 2^12 of its
// (finite) sum. What all that was relative to it is multiplied by.
SIRDAR_DEVICE float follow_weight(float weight, float sum, float& reference) {
  const float top = ptx::max_of(ptx::max_of(weight, sum * 0x1p-12f), 1.0f);
  const float next = reference + ptx::log2_approx(top);
  const float factor = ptx::exp2_approx(reference - next);
  reference = next;
  return factor;
}

}  // namespace sirdar::sm90
