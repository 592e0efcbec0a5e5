// Arithmetic that has an instruction of its own.
#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

// 2^x, relative error 2^-22.5; denormal results are 0; -inf gives 0.
SIRDAR_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(x), absolute error 2^-22 near 1; 0 gives -inf.
SIRDAR_DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x, relative error 2^-23; infinities give 0.
SIRDAR_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / sqrt(x), relative error 2^-22.9; 0 gives inf, negative numbers NaN.
SIRDAR_DEVICE float rsqrt_approx(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

SIRDAR_DEVICE float floor_of(float x) { return floorf(x); }

// The larger one; a NaN loses against a number.
SIRDAR_DEVICE float max_of(float a, float b) { return fmaxf(a, b); }
// The larger or smaller one; a NaN wins.
SIRDAR_DEVICE float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
SIRDAR_DEVICE float min_or_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
SIRDAR_DEVICE float min_of(float a, float b) { return fminf(a, b); }
SIRDAR_DEVICE float absolute(float x) { return fabsf(x); }
SIRDAR_DEVICE float fma_of(float a, float b, float c) { return fmaf(a, b, c); }
SIRDAR_DEVICE int min_of(int a, int b) { return a < b ? a : b; }
SIRDAR_DEVICE int max_of(int a, int b) { return a < b ? b : a; }

// Places of the first and the last one; `bits` is not 0.
SIRDAR_DEVICE int lowest_bit(uint32_t bits) { return __ffs(static_cast<int>(bits)) - 1; }
SIRDAR_DEVICE int highest_bit(uint32_t bits) { return 31 - __clz(static_cast<int>(bits)); }
SIRDAR_DEVICE int count_bits(uint32_t bits) { return __popc(bits); }
// The lowest `count` bits, which is not negative; from 32 on all.
SIRDAR_DEVICE uint32_t lowest_bits(int count) {
  uint32_t bits;
  asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(bits) : "r"(0), "r"(count));
  return bits;
}

SIRDAR_DEVICE uint32_t bits_of(float x) { return __float_as_uint(x); }
SIRDAR_DEVICE float float_of(uint32_t bits) { return __uint_as_float(bits); }

// Exactly.
SIRDAR_DEVICE float f16_to_float(uint16_t bits) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
  return y;
}

// Two floats rounded to nearest even, `low` in the lower half.
SIRDAR_DEVICE uint32_t pack_bf16x2(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
SIRDAR_DEVICE uint32_t pack_f16x2(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Products of the halves, rounded to nearest even.
SIRDAR_DEVICE uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
SIRDAR_DEVICE uint32_t multiply_f16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

}  // namespace sirdar::ptx
