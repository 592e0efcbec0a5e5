#pragma once

#include <cmath>

#include "ptx/base.cuh"
#include "shared/float_bits.h"

namespace sirdar::ptx {

// .ftz: subnormal operands and results are zero.
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

inline float exp2_approx(float x) {
  ++machine().counters().exponentials;
  return flushed(std::exp2(flushed(x)));
}
inline float log2_approx(float x) {
  ++machine().counters().logarithms;
  return std::log2(flushed(x));
}
inline float reciprocal_approx(float x) { return flushed(1.0f / flushed(x)); }

inline float rsqrt_approx(float x) { return flushed(1.0f / std::sqrt(flushed(x))); }
inline float floor_of(float x) { return std::floor(x); }

inline float min_of(float a, float b) { return std::fmin(a, b); }
inline float absolute(float x) { return std::fabs(x); }
inline float max_of(float a, float b) { return std::fmax(a, b); }
inline float max_or_nan(float a, float b) { return std::isnan(a) || a > b ? a : b; }
inline float min_or_nan(float a, float b) { return std::isnan(a) || a < b ? a : b; }
inline float fma_of(float a, float b, float c) { return std::fma(a, b, c); }
inline int min_of(int a, int b) { return a < b ? a : b; }
inline int max_of(int a, int b) { return a < b ? b : a; }

inline int lowest_bit(uint32_t bits) { return __builtin_ctz(bits); }
inline int highest_bit(uint32_t bits) { return 31 - __builtin_clz(bits); }
inline int count_bits(uint32_t bits) { return __builtin_popcount(bits); }
inline uint32_t lowest_bits(int count) { return count > 31 ? ~0u : (1u << count) - 1; }

inline uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
inline float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline float f16_to_float(uint16_t bits) { return fp16_to_float(bits); }

// One NaN stands for all, as on the hardware.
inline uint32_t bf16_bits(float x) { return x != x ? 0x7fffu : float_to_bf16(x); }
inline uint32_t fp16_bits(float x) { return x != x ? 0x7fffu : float_to_fp16(x); }
inline uint32_t pack_bf16x2(float low, float high) {
  return bf16_bits(low) | bf16_bits(high) << 16;
}
inline uint32_t pack_f16x2(float low, float high) { return fp16_bits(low) | fp16_bits(high) << 16; }

inline uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  return pack_bf16x2(
      bf16_to_float(static_cast<uint16_t>(a)) * bf16_to_float(static_cast<uint16_t>(b)),
      bf16_to_float(static_cast<uint16_t>(a >> 16)) *
          bf16_to_float(static_cast<uint16_t>(b >> 16)));
}
inline uint32_t multiply_f16x2(uint32_t a, uint32_t b) {
  return pack_f16x2(
      fp16_to_float(static_cast<uint16_t>(a)) * fp16_to_float(static_cast<uint16_t>(b)),
      fp16_to_float(static_cast<uint16_t>(a >> 16)) *
          fp16_to_float(static_cast<uint16_t>(b >> 16)));
}

}  // namespace sirdar::ptx
