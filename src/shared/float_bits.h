// Narrow floating-point formats <-> float by integer arithmetic, the same bits on every machine.
// Encoding rounds to nearest, ties to even; subnormals are exact; a NaN stays a (quiet) NaN and
// keeps its sign. Overflow gives infinity where the format has one (bf16, fp16, e5m2) and NaN in
// e4m3, which has none (OCP 8-bit floating point, non-saturating mode). Includes nothing: also read
// by NVRTC.
#pragma once

namespace sirdar {

template <int kExponentBits, int kMantissaBits, bool kHasInfinity>
struct FloatFormat {
  static constexpr int exponent_bits = kExponentBits;
  static constexpr int mantissa_bits = kMantissaBits;
  static constexpr bool has_infinity = kHasInfinity;
  static constexpr int bias = (1 << (kExponentBits - 1)) - 1;
  static constexpr unsigned sign_bit = 1u << (kExponentBits + kMantissaBits);
  static constexpr unsigned exponent_mask = ((1u << kExponentBits) - 1) << kMantissaBits;
  static constexpr unsigned quiet_bit = 1u << (kMantissaBits - 1);
  // The first magnitude that is not a finite number.
  static constexpr unsigned overflow =
      kHasInfinity ? exponent_mask : exponent_mask | ((1u << kMantissaBits) - 1);
};
using Bf16Format = FloatFormat<8, 7, true>;
using Fp16Format = FloatFormat<5, 10, true>;
using E4m3Format = FloatFormat<4, 3, false>;
using E5m2Format = FloatFormat<5, 2, true>;

// `magnitude` >> shift, rounded to nearest even; 1 <= shift <= 31.
constexpr unsigned shift_right_rounded(unsigned magnitude, int shift) {
  const unsigned kept = magnitude >> shift;
  const unsigned dropped = magnitude - (kept << shift), half = 1u << (shift - 1);
  return kept + (dropped > half || (dropped == half && (kept & 1)) ? 1 : 0);
}

template <class F>
constexpr unsigned encode(float value) {
  constexpr int shift = 23 - F::mantissa_bits;
  constexpr int rebias = 127 - F::bias;
  const unsigned bits = __builtin_bit_cast(unsigned, value);
  const unsigned sign = bits >> 31 ? F::sign_bit : 0, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    if constexpr (!F::has_infinity) return sign | F::overflow;
    return sign | F::exponent_mask | F::quiet_bit | ((magnitude & 0x7fffffu) >> shift);
  }
  const int exponent = static_cast<int>(magnitude >> 23);
  unsigned rounded = 0;
  if (exponent > rebias) {  // a normal number of the format: only the bias of the exponent differs
    rounded = shift_right_rounded(magnitude - (static_cast<unsigned>(rebias) << 23), shift);
  } else {
    const unsigned mantissa = (magnitude & 0x7fffffu) | (exponent > 0 ? 0x800000u : 0u);
    const int more = shift + rebias + 1 - (exponent > 0 ? exponent : 1);
    rounded = more < 26 ? shift_right_rounded(mantissa, more) : 0;
  }
  return sign | (rounded < F::overflow ? rounded : F::overflow);
}

template <class F>
constexpr float decode(unsigned bits) {
  constexpr int shift = 23 - F::mantissa_bits;
  const unsigned sign = bits & F::sign_bit ? 0x80000000u : 0u;
  const unsigned magnitude = bits & (F::sign_bit - 1);
  unsigned mantissa = magnitude & ((1u << F::mantissa_bits) - 1);
  if (magnitude >= F::overflow) {
    const bool is_infinity = F::has_infinity && mantissa == 0;
    const unsigned payload = is_infinity ? 0 : 0x400000u | (mantissa << shift);
    return __builtin_bit_cast(float, sign | 0x7f800000u | payload);
  }
  int exponent = static_cast<int>(magnitude >> F::mantissa_bits);
  if constexpr (F::exponent_bits == 8) return __builtin_bit_cast(float, sign | magnitude << shift);
  if (exponent == 0) {
    if (mantissa == 0) return __builtin_bit_cast(float, sign);
    exponent = 1;  // a subnormal: move its first set bit to the hidden place
    while (!(mantissa & (1u << F::mantissa_bits))) mantissa <<= 1, --exponent;
    mantissa &= (1u << F::mantissa_bits) - 1;
  }
  const unsigned rebiased = static_cast<unsigned>(exponent + 127 - F::bias) << 23;
  return __builtin_bit_cast(float, sign | rebiased | mantissa << shift);
}

constexpr unsigned short float_to_bf16(float value) {
  return static_cast<unsigned short>(encode<Bf16Format>(value));
}
constexpr unsigned short float_to_fp16(float value) {
  return static_cast<unsigned short>(encode<Fp16Format>(value));
}
constexpr unsigned char float_to_e4m3(float value) {
  return static_cast<unsigned char>(encode<E4m3Format>(value));
}
constexpr unsigned char float_to_e5m2(float value) {
  return static_cast<unsigned char>(encode<E5m2Format>(value));
}
constexpr float bf16_to_float(unsigned short bits) { return decode<Bf16Format>(bits); }
constexpr float fp16_to_float(unsigned short bits) { return decode<Fp16Format>(bits); }
constexpr float e4m3_to_float(unsigned char bits) { return decode<E4m3Format>(bits); }
constexpr float e5m2_to_float(unsigned char bits) { return decode<E5m2Format>(bits); }

}  // namespace sirdar
