// Rows whose lse is far from 0: its rounding to fp32, which exp magnifies, means something there,
// and sums with it have no digits left of scores. What the tensor cores make of such a row is NaN
// by intention, so that it is made again pair by pair (restore.cuh), of the row's own softmax.
#pragma once

#include "cuda/sm90/backward/exact_pairs.cuh"

namespace sirdar::sm90 {

// The part of the saved softmax that these keys and the sink hold; 1 if the saved lse is this row's
// own, rounded.
SIRDAR_DEVICE float share_of(double own_lse, float saved_lse) {
  const double difference = own_lse - static_cast<double>(saved_lse);
  const double size = own_lse < 0 ? -own_lse : own_lse;
  const bool is_own = difference <= size * 0x1p-23 && -difference <= size * 0x1p-23;
  return is_own ? 1.0f : language::exp(static_cast<float>(difference));
}

// A sum of exp(logit - top).
struct RowSoftmax {
  float top, sum;

  SIRDAR_DEVICE void join(const RowSoftmax& other) {
    if (top == kMinusInfinity && other.top == kMinusInfinity) return;
    const float larger = ptx::max_of(top, other.top);  // without NaN, which the sum gets
    sum = sum * language::exp(top - larger) + other.sum * language::exp(other.top - larger);
    top = larger;
  }
};

// Of one row by a warp: its largest logit, or sink, and what exp(logit - base) is of the caller's
// softmax. A first look finds about where the logits are, and the second takes them from there.
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE RowLevel level_of(const ExactPairs<config, Modification>& pairs, int row, int lane) {
  const BackwardParams& params = pairs.params;
  const BackwardBounds<config> bounds = bounds_of<config>(params, pairs.sequence);
  const int begin = bounds.lo(row) + lane, end = bounds.hi(row);
  float sink = kMinusInfinity;
  if (params.sink != nullptr) {
    sink = ptx::load_constant(params.sink + pairs.head * params.stride_sink);
  }
  float about = sink;
  SIRDAR_NO_UNROLL
  for (int key = begin; key < end; key += 32) {
    about = ptx::max_of(about, static_cast<float>(pairs.logit(row, key)));
  }
  SIRDAR_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) about = ptx::max_of(about, ptx::shfl_xor(about, mask));
  if (about == kMinusInfinity) return {0, 0};  // nothing of the row is here
  RowSoftmax softmax{kMinusInfinity, 0};
  if (lane == 0) softmax.join({sink - about, 1});
  SIRDAR_NO_UNROLL
  for (int key = begin; key < end; key += 32) {
    const double logit = pairs.logit(row, key);
    softmax.join({static_cast<float>(logit - static_cast<double>(about)), 1});
  }
  SIRDAR_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) {
    softmax.join({ptx::shfl_xor(softmax.top, mask), ptx::shfl_xor(softmax.sum, mask)});
  }
  const long long at = pairs.offset(params.lse, true, row);
  const double base = static_cast<double>(about) + static_cast<double>(softmax.top);
  const double own = base + static_cast<double>(language::log(softmax.sum));
  return {base, share_of(own, static_cast<const float*>(params.lse.data)[at]) / softmax.sum};
}

// Of the rows from `first_row` on that the bits of `far` tell, by a warp.
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE_APART void write_levels(const ExactPairs<config, Modification>& pairs, int first_row,
                                      uint32_t far, int lane) {
  SIRDAR_NO_UNROLL
  for (; far != 0; far &= far - 1) {
    const int row = first_row + ptx::lowest_bit(far);
    const RowLevel level = level_of(pairs, row, lane);
    if (lane == 0) pairs.params.levels[pairs.place_of_row(row)] = level;
  }
}

}  // namespace sirdar::sm90
