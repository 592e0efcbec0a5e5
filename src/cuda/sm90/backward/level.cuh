// Rows whose lse is far from 0: its rounding to fp32, which exp magnifies, means something there,
// and sums with it have no digits left of scores. The products give such a row weights of 0, and
// its pairs are made one by one, of the row's own softmax: dQ in restore.cuh, what keys get in
// far_rows.cuh.
#pragma once

#include "cuda/sm90/backward/exact_pairs.cuh"

namespace sirdar::sm90 {

// A far row's, by a warp: lanes have keys of their own.
template <BackwardConfig config, class Modification>
using FarPairs = ExactPairs<config, Modification, PairsBy::lane_ahead>;

// The part of the saved softmax that these keys and the sink hold; 1 if the saved lse is this row's
// own, rounded.
SIRDAR_DEVICE float share_of(double own_lse, float saved_lse) {
  const double difference = own_lse - static_cast<double>(saved_lse);
  const double size = own_lse < 0 ? -own_lse : own_lse;
  const bool is_own = difference <= size * 0x1p-23 && -difference <= size * 0x1p-23;
  return is_own ? 1.0f : language::exp(static_cast<float>(difference));
}

// A sum of exp(logit - top).
template <class Number>
struct RowSoftmax {
  Number top = static_cast<Number>(kMinusInfinity);
  float sum = 0;

  SIRDAR_DEVICE void join(const RowSoftmax& other) {
    const Number least = static_cast<Number>(kMinusInfinity);
    if (top == least && other.top == least) return;
    const Number larger = other.top > top ? other.top : top;  // a NaN the sum gets
    sum = sum * language::exp(static_cast<float>(top - larger)) +
          other.sum * language::exp(static_cast<float>(other.top - larger));
    top = larger;
  }
};

// Of one row by a warp: its largest logit, or sink, and what exp(logit - base) is of the caller's
// softmax. Lanes add up their keys' from a level of their own, and then all from about the largest.
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE RowLevel level_of(const FarPairs<config, Modification>& pairs, int row, int lane) {
  const BackwardParams& params = pairs.params;
  const BackwardBounds<config> bounds = bounds_of<config>(params, pairs.sequence);
  const int begin = bounds.lo(row) + lane, end = bounds.hi(row);
  RowSoftmax<double> own;
  if (params.sink != nullptr && lane == 0) {
    const float sink = ptx::load_constant(params.sink + pairs.head * params.stride_sink);
    own.join({static_cast<double>(sink), 1});
  }
  SIRDAR_NO_UNROLL
  for (int key = begin; key < end; key += 32) own.join({pairs.logit(row, key), 1});
  float about = static_cast<float>(own.top);
  SIRDAR_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) about = ptx::max_of(about, ptx::shfl_xor(about, mask));
  if (about == kMinusInfinity) return {0, 0};  // nothing of the row is here
  const double level = static_cast<double>(about);
  RowSoftmax<float> softmax{static_cast<float>(own.top - level), own.sum};
  SIRDAR_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) {
    softmax.join({ptx::shfl_xor(softmax.top, mask), ptx::shfl_xor(softmax.sum, mask)});
  }
  const long long at = pairs.offset(params.lse, true, row);
  const double base = level + static_cast<double>(softmax.top);
  const double lse = base + static_cast<double>(language::log(softmax.sum));
  return {base, share_of(lse, static_cast<const float*>(params.lse.data)[at]) / softmax.sum};
}

// Whether a row, whose -delta is given, adds nothing to any gradient.
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE bool gives_nothing(const FarPairs<config, Modification>& pairs, int row, float delta,
                                 int lane) {
  bool is_zero = delta == 0;
  const uint16_t* const dout = pairs.at(pairs.params.dout_rows, true, row);
  SIRDAR_UNROLL
  for (int column = 8 * lane; column < config.head_dim_v; column += 256) {
    const ptx::Int4 piece = ptx::load_constant_int4(dout + column);
    is_zero &= ((piece.x | piece.y | piece.z | piece.w) & 0x7fff7fff) == 0;
  }
  return !ptx::any_sync(!is_zero);
}

// Of the rows from `first_row` on that the bits of `far` tell, by a warp, which has written their
// deltas: what pairs need of them, and which of them give something.
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE_APART void write_levels(const FarPairs<config, Modification>& pairs, int first_row,
                                      uint32_t far, int lane) {
  const BackwardParams& params = pairs.params;
  ptx::syncwarp();
  uint32_t giving = 0;
  SIRDAR_NO_UNROLL
  for (; far != 0; far &= far - 1) {
    const int bit = ptx::lowest_bit(far), row = first_row + bit;
    const long long place = pairs.place_of_row(row);
    RowLevel level{-static_cast<double>(kMinusInfinity), 0};  // a weight of 0 at any logit
    if (!gives_nothing(pairs, row, params.start_delta[place], lane)) {
      giving |= 1u << bit;
      level = level_of(pairs, row, lane);
    }
    if (lane == 0) params.levels[place] = level;
  }
  if (lane == 0) params.far_rows[pairs.place_of_row(first_row) / kFarRows] = giving;
}

}  // namespace sirdar::sm90
