#pragma once

#include <bit>
#include <cmath>

#include "ptx/base.cuh"
#include "shared/float_bits.h"

namespace sirdar::ptx {

// The approximations of the device flush subnormal operands and results.
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

inline float exp2_approx(float x) { return flushed(std::exp2(x)); }
inline float reciprocal_approx(float x) { return flushed(1.0f / flushed(x)); }
inline float rsqrt_approx(float x) { return 1.0f / std::sqrt(flushed(x)); }
inline float floor_of(float x) { return std::floor(x); }
inline float fma_of(float a, float b, float c) { return std::fma(a, b, c); }
inline int min_of(int a, int b) { return a < b ? a : b; }
inline int max_of(int a, int b) { return a < b ? b : a; }
inline uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
inline float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }
inline float f16_to_float(uint16_t bits) { return fp16_to_float(bits); }

}  // namespace sirdar::ptx
