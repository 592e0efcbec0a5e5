// From a dot product to a logit, in the order that docs/semantics.md fixes: scale, soft-cap, bias,
// ALiBi. score_mod and the masks come after it.
#pragma once

#include "shared/math.h"

namespace sirdar {

// Saturates at +-cap for scores of any size, infinities included; never turns a number into NaN.
template <class T>
T apply_softcap(T score, T cap) {
  return cap * tanh_of(score / cap);
}

// d apply_softcap / d score: 1 - tanh(x)^2 = 4 e / (1 + e)^2 with e = exp(-2 |x|), which needs no
// difference of numbers near 1 and so is as exact where the cap saturates.
template <class T>
T softcap_derivative(T score, T cap) {
  const T x = score / cap;
  const T e = exp_of(x < 0 ? 2 * x : -2 * x);
  const T half = 2 / (1 + e);
  return e * half * half;
}

// -slope * |i + seqlen_k - seqlen_q - j|; q_pos = i + seqlen_k - seqlen_q, whatever the alignment.
template <class T>
T alibi_term(T slope, long long q_pos, long long k) {
  const long long distance = q_pos < k ? k - q_pos : q_pos - k;
  return -slope * static_cast<T>(distance);
}

template <class T>
struct Logits {
  T softmax_scale = 1;
  T softcap = 0;  // 0: off

  T scaled(T dot) const { return softmax_scale * dot; }
  T capped(T score) const { return softcap > 0 ? apply_softcap(score, softcap) : score; }
  // bias and alibi are 0 where the problem has none.
  T logit(T dot, T bias, T alibi) const { return capped(scaled(dot)) + bias + alibi; }
  // d logit / d dot.
  T derivative(T dot) const {
    return softcap > 0 ? softmax_scale * softcap_derivative(scaled(dot), softcap) : softmax_scale;
  }
};

}  // namespace sirdar
