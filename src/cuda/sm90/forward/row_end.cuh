// What a row's sum of weights becomes when its last key block is done.
#pragma once

#include "cuda/sm90/fragment.cuh"
#include "ptx/all.cuh"

namespace sirdar::sm90 {

// The row's normaliser, and the logarithm of what it normalises. The normaliser of a row that has
// nothing to normalise is -0, which is no other's: sums are not negative.
struct RowResult {
  float inverse, lse;  // lse in natural log
};
SIRDAR_DEVICE bool is_empty_row(float inverse) { return ptx::bits_of(inverse) == 0x80000000u; }

SIRDAR_DEVICE RowResult finish_row(float reference, float sum) {
  if (sum == 0.0f) return {-0.0f, kMinusInfinity};
  return {ptx::reciprocal_approx(sum), (reference + ptx::log2_approx(sum)) * kLn2};
}

// `sink` in log2 units. It is one more weight in the sum, without a value; the larger of the two
// references keeps both in range.
SIRDAR_DEVICE RowResult finish_row(float reference, float sum, float sink) {
  const float top = ptx::max_of(reference, sink);
  const float usable = top == kMinusInfinity ? 0.0f : top;
  const float factor = ptx::exp2_approx(reference - usable);
  const float total = sum * factor + ptx::exp2_approx(sink - usable);
  return {sum == 0.0f ? -0.0f : factor / total,
          total == 0.0f ? kMinusInfinity : (usable + ptx::log2_approx(total)) * kLn2};
}

}  // namespace sirdar::sm90
