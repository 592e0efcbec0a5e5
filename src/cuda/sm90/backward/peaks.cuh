// How P and dS fit fp16, whose numbers end at 65504 and 2^-24. P is at most 1 and is kept times
// 2^15. dS = P (dP - delta) is at most P (max |dO_i| max |V_j| + max |delta_i|) over a block's keys
// and the rows that see some of them (Cauchy-Schwarz), so one power of two for all of a block
// brings them up to where fp16 ends and not beyond. dV, dK and dQ are freed of both at the end.
#pragma once

#include "cuda/sm90/backward/config.h"
#include "cuda/sm90/fragment.cuh"

namespace sirdar::sm90 {

inline constexpr int kWeightExponent = 15;
inline constexpr float kWeightScale = 1 << kWeightExponent;
inline constexpr int kPeakRows = 32;  // of a pair of peaks in the workspace

// The largest |V_j|^2, |dO_i|^2 and |delta_i|, as the bits of floats that are not negative, which
// compare as integers: found in any order they are the same. What is not finite counts as 0, for no
// factor changes what comes of it.
struct Peaks {
  int v = 0, dout = 0, delta = 0;

  SIRDAR_DEVICE void join(const Peaks& other) {
    v = ptx::max_of(v, other.v);
    dout = ptx::max_of(dout, other.dout);
    delta = ptx::max_of(delta, other.delta);
  }
};
SIRDAR_DEVICE int peak_of(float value) {
  const int bits = static_cast<int>(ptx::bits_of(value));
  return bits < 0x7f800000 ? bits : 0;
}
SIRDAR_DEVICE int warp_peak(int bits) {
  SIRDAR_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) {
    bits = ptx::max_of(bits, static_cast<int>(ptx::shfl_xor(static_cast<uint32_t>(bits), mask)));
  }
  return bits;
}

// Sum of the products of eight elements each.
template <Element kElement>
SIRDAR_DEVICE float dot_of_eight(const ptx::Int4& a, const ptx::Int4& b) {
  const int x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
  SIRDAR_UNROLL
  for (int i = 0; i < 4; ++i) {
    const FloatPair u = unpack<kElement>(static_cast<uint32_t>(x[i])),
                    v = unpack<kElement>(static_cast<uint32_t>(y[i]));
    sum = ptx::fma_of(u.low, v.low, sum);
    sum = ptx::fma_of(u.high, v.high, sum);
  }
  return sum;
}

// The factor that a thread keeps; none with bf16.
template <bool kIsScaled>
struct ScaleFactor {
  float factor;
};
template <>
struct ScaleFactor<false> {};

// The power of two that dS is multiplied by.
SIRDAR_DEVICE float product_scale(const Peaks& peaks) {
  const auto exponent_of = [](int bits) { return (bits >> 23) - 126; };  // less than two to that
  const float square = ptx::float_of(static_cast<uint32_t>(peaks.v)) *
                       ptx::float_of(static_cast<uint32_t>(peaks.dout));
  const int of_root = (exponent_of(static_cast<int>(ptx::bits_of(square))) + 1) >> 1;
  const int of_sum = ptx::max_of(of_root, exponent_of(peaks.delta)) + 1;
  constexpr int kLeast = -100;  // a dlse near fp32's end
  return ptx::float_of(static_cast<uint32_t>(127 + ptx::max_of(15 - of_sum, kLeast)) << 23);
}
// 1 / x of a power of two, exactly.
SIRDAR_DEVICE float inverse_of(float power) {
  return ptx::float_of((254u << 23) - ptx::bits_of(power));
}

}  // namespace sirdar::sm90
