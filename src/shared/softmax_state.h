// The softmax of a row as a monoid: what is known after some of its scores, in any order and
// grouping.
//   lse = max + ln(sum), natural logarithm; -inf when nothing was added (docs/semantics.md).
// A score of -inf has weight 0 and changes nothing; a NaN, or +inf, makes the row NaN.
#pragma once

#include "shared/math.h"

namespace sirdar {

template <class T>
struct SoftmaxState {
  // invariant: sum is 0 exactly if nothing of weight was added, and then max is -inf; otherwise
  // sum >= 1 up to rounding (the largest score contributes 1), or NaN.
  T max = -kInfinity<T>;
  T sum = 0;

  bool empty() const { return sum == 0; }
  T lse() const { return empty() ? -kInfinity<T> : max + log_of(sum); }
  // What the accumulated, not yet normalised output is multiplied by at the end.
  T inverse_sum() const { return empty() ? T{0} : T{1} / sum; }
};

// What terms relative to `from` are multiplied by when the maximum becomes `to` >= from.
// Also where both are -inf (then there are no terms) it is a number.
template <class T>
T rescale_factor(T from, T to) {
  return from == to && from == -kInfinity<T> ? T{1} : exp_of(from - to);
}

template <class T>
SoftmaxState<T> merge(const SoftmaxState<T>& a, const SoftmaxState<T>& b) {
  const T max = a.max < b.max ? b.max : a.max;
  return {max, a.sum * rescale_factor(a.max, max) + b.sum * rescale_factor(b.max, max)};
}

template <class T>
SoftmaxState<T> update(const SoftmaxState<T>& state, T score) {
  if (score == -kInfinity<T>) return state;
  if (score != score) return {state.max, score};
  return merge(state, SoftmaxState<T>{score, T{1}});
}

// Weights with which two finished partial results (out, lse) over disjoint keys are added, and the
// lse of their union. An empty side (lse = -inf) has weight 0; callers copy the other side
// untouched then.
template <class T>
struct MergeWeights {
  T a, b, lse;
};
template <class T>
MergeWeights<T> merge_weights(T lse_a, T lse_b) {
  const SoftmaxState<T> state = update(update(SoftmaxState<T>{}, lse_a), lse_b);
  const T inverse = state.inverse_sum();
  return {lse_a == -kInfinity<T> ? T{0} : exp_of(lse_a - state.max) * inverse,
          lse_b == -kInfinity<T> ? T{0} : exp_of(lse_b - state.max) * inverse, state.lse()};
}

}  // namespace sirdar
