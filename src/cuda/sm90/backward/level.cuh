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

// Of one row by a warp: its largest logit, or sink, and what exp(logit - base) is of the caller's
// softmax.
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE RowLevel level_of(const ExactPairs<config, Modification>& pairs, int row, int lane) {
  const BackwardParams& params = pairs.params;
  const BackwardBounds<config> bounds = bounds_of<config>(params, pairs.sequence);
  const int end = bounds.hi(row);
  float largest = kMinusInfinity, sum = 0;
  if (params.sink != nullptr) {
    largest = ptx::load_constant(params.sink + pairs.head * params.stride_sink);
    sum = lane == 0 && largest != kMinusInfinity ? 1.0f : 0.0f;
  }
  SIRDAR_NO_UNROLL
  for (int first = bounds.lo(row); first < end; first += 32) {
    const float logit = pairs.logit(row, first + lane);
    float top = ptx::max_of(largest, logit);
    SIRDAR_UNROLL
    for (int mask = 1; mask < 32; mask *= 2) top = ptx::max_of(top, ptx::shfl_xor(top, mask));
    if (top != largest) sum *= language::exp(largest - top);
    largest = top;
    if (logit != kMinusInfinity) sum += language::exp(logit - top);
  }
  SIRDAR_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) sum += ptx::shfl_xor(sum, mask);
  if (largest == kMinusInfinity && sum == 0.0f) return {0, 0};  // nothing of the row is here
  const long long at = pairs.offset(params.lse, true, row);
  const double own = static_cast<double>(largest) + static_cast<double>(language::log(sum));
  return {largest, share_of(own, static_cast<const float*>(params.lse.data)[at]) / sum};
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
