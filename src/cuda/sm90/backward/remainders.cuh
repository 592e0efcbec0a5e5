// Weights as fp32 in two halves: the upper ones are the bf16 weights of dV, the lower ones are kept
// until dS is made, which so is rounded once and not twice.
#pragma once

#include "cuda/sm90/backward/params.h"
#include "cuda/sm90/backward/peaks.cuh"
#include "cuda/sm90/fragment.cuh"

namespace sirdar::sm90 {

// Cutting makes weights smaller by 2^-8 / m on average, m being the mantissa, whose logarithm is
// spread evenly: times so much they are right on average, and so are dV's sums.
inline constexpr float kCutFactor = 1 + 0.7213f / 256, kCutExponent = 0.0040592f;  // log2 of it

// dS is made of weights times so much.
constexpr float weight_factor(const BackwardConfig& c) {
  return c.keeps_remainders ? kCutFactor : 1.0f;
}

SIRDAR_DEVICE uint32_t upper_halves(float low, float high) {
  return (ptx::bits_of(low) >> 16) | (ptx::bits_of(high) & 0xffff0000u);
}
SIRDAR_DEVICE uint32_t lower_halves(float low, float high) {
  return (ptx::bits_of(low) & 0xffffu) | (ptx::bits_of(high) << 16);
}
SIRDAR_DEVICE FloatPair join_halves(uint32_t upper, uint32_t lower) {
  return {ptx::float_of((upper << 16) | (lower & 0xffffu)),
          ptx::float_of((upper & 0xffff0000u) | (lower >> 16))};
}

// Of a score alone: the exponent, to 2, of its weight times the power of two that fp16 keeps it by,
// or times kCutFactor.
template <BackwardConfig config>
SIRDAR_DEVICE float exponent_of(const BackwardParams& params, float score) {
  if constexpr (is_scaled(config)) {
    return ptx::fma_of(score, params.scale_log2, kWeightExponent);
  } else if constexpr (config.keeps_remainders) {
    return ptx::fma_of(score, params.scale_log2, kCutExponent);
  }
  return score * params.scale_log2;
}

// The word of two weights for dV, and what is kept of them, if anything is.
template <BackwardConfig config>
SIRDAR_DEVICE uint32_t word_of(float low, float high, uint32_t& kept) {
  if constexpr (config.keeps_remainders) {
    kept = lower_halves(low, high);
    return upper_halves(low, high);
  }
  return pack<config.element>(low, high);
}

}  // namespace sirdar::sm90
