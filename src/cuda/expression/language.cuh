// The expression language on the device (docs/expressions.md): the operations that the code which
// expression/emit_cuda.cc writes is made of. Nothing here branches or calls, because a branch among
// asynchronous matrix products costs their overlap.
#pragma once

#include "ptx/math.cuh"
#include "ptx/memory.cuh"
#include "shared/tensor_operand.h"

namespace sirdar::language {

inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);
inline constexpr float kNaN = __builtin_bit_cast(float, 0x7fc00000u);

// ---- ints: 32 bits, wrapping

SIRDAR_DEVICE uint32_t bits(int a) { return static_cast<uint32_t>(a); }
SIRDAR_DEVICE int add(int a, int b) { return static_cast<int>(bits(a) + bits(b)); }
SIRDAR_DEVICE int subtract(int a, int b) { return static_cast<int>(bits(a) - bits(b)); }
SIRDAR_DEVICE int multiply(int a, int b) { return static_cast<int>(bits(a) * bits(b)); }
SIRDAR_DEVICE int negate(int a) { return subtract(0, a); }
SIRDAR_DEVICE int absolute(int a) { return a < 0 ? negate(a) : a; }
// By 0: 0. By -1 apart, because the smallest int has no opposite.
SIRDAR_DEVICE int divide(int a, int b) {
  const int quotient = a / (b == 0 || b == -1 ? 1 : b);
  return b == 0 ? 0 : b == -1 ? negate(a) : quotient;
}
SIRDAR_DEVICE int remainder(int a, int b) { return a % (b == 0 || b == -1 ? 1 : b); }
SIRDAR_DEVICE int smaller(int a, int b) { return ptx::min_of(a, b); }
SIRDAR_DEVICE int larger(int a, int b) { return ptx::max_of(a, b); }

// ---- fp32

SIRDAR_DEVICE float to_real(int a) { return static_cast<float>(a); }
// NaN if either is; the first where they are equal.
SIRDAR_DEVICE float smaller(float a, float b) { return a <= b || a != a ? a : b; }
SIRDAR_DEVICE float larger(float a, float b) { return a >= b || a != a ? a : b; }
SIRDAR_DEVICE float absolute(float a) { return ptx::float_of(ptx::bits_of(a) & 0x7fffffffu); }
SIRDAR_DEVICE float floor(float a) { return ptx::floor_of(a); }

// Within 1 ulp. The divisor is brought near 1, where its reciprocal is a normal number; the
// quotient is refined once, which is undone where infinities or zeros made it NaN.
SIRDAR_DEVICE float divide(float a, float b) {
  const float size = absolute(b);
  const float scale = size > 0x1p96f ? 0x1p-32f : size < 0x1p-96f ? 0x1p64f : 1.0f;
  const float divisor = b * scale, reciprocal = ptx::reciprocal_approx(divisor);
  const float quotient = a * reciprocal;
  const float rest = ptx::fma_of(-divisor, quotient, a);
  const float refined = ptx::fma_of(rest, reciprocal, quotient);
  return (refined == refined ? refined : quotient) * scale;
}

// Within 1 ulp, by the same means.
SIRDAR_DEVICE float sqrt(float a) {
  const bool is_small = a < 0x1p-96f;
  const float x = is_small ? a * 0x1p64f : a;
  const float inverse = ptx::rsqrt_approx(x), root = x * inverse;
  const float refined = ptx::fma_of(ptx::fma_of(-root, root, x), 0.5f * inverse, root);
  const float value = x == 0.0f || x == kInfinity ? x : refined;
  return is_small ? value * 0x1p-32f : value;
}

SIRDAR_DEVICE float exp2(float a) { return ptx::exp2_approx(a); }

// 2^(a log2 e): the whole part of the exponent apart, so that no digits are lost to it. In two
// factors, because 2^128 is no float and 2^-126 is not the end.
SIRDAR_DEVICE float exp(float a) {
  const float bounded = a < 150.0f ? a > -150.0f ? a : -150.0f : 150.0f;
  const float whole = ptx::floor_of(ptx::fma_of(bounded, 1.44269504f, 0.5f));
  const float part =
      ptx::fma_of(bounded, 1.92596303e-8f, ptx::fma_of(bounded, 1.44269502e0f, -whole));
  const int half = static_cast<int>(whole) / 2, rest = static_cast<int>(whole) - half;
  const float value = ptx::exp2_approx(part) *
                      ptx::float_of(static_cast<uint32_t>(half + 127) << 23) *
                      ptx::float_of(static_cast<uint32_t>(rest + 127) << 23);
  return a != a ? a : value;
}

SIRDAR_DEVICE float sigmoid(float a) { return ptx::reciprocal_approx(1.0f + exp(-a)); }

// 1 - 2 / (1 + e^2|a|), which loses digits near 0: an odd polynomial stands there.
SIRDAR_DEVICE float tanh(float a) {
  const float size = absolute(a), square = a * a;
  const float e = ptx::exp2_approx(size * 2.885390082f);
  const float far = ptx::fma_of(-2.0f, ptx::reciprocal_approx(1.0f + e), 1.0f);
  float p = ptx::fma_of(square, -0x1.697116p-8f, 0x1.4f5ef8p-6f);
  p = ptx::fma_of(square, p, -0x1.b7cff2p-5f);
  p = ptx::fma_of(square, p, 0x1.1103f2p-3f);
  p = ptx::fma_of(square, p, -0x1.555524p-2f);
  const float near = ptx::fma_of(p * square, a, a);
  return size < 0.65f ? near : a < 0.0f ? -far : far;
}

// The exponent apart; of the rest, within sqrt(1/2) .. sqrt(2), 2 atanh((m - 1) / (m + 1)).
SIRDAR_DEVICE float log(float a) {
  const bool is_small = a < 0x1p-126f;
  const uint32_t whole = ptx::bits_of(is_small ? a * 0x1p32f : a);
  const int shifted = static_cast<int>(whole - 0x3f3504f3u);
  const float exponent = to_real((shifted >> 23) - (is_small ? 32 : 0));
  const float m = ptx::float_of(whole - (static_cast<uint32_t>(shifted) & 0xff800000u));
  const float t = divide(m - 1.0f, m + 1.0f), square = t * t;
  float p = ptx::fma_of(square, 0x1.322988p-2f, 0x1.995c4ap-2f);
  p = ptx::fma_of(square, p, 0x1.55557cp-1f);
  const float value =
      ptx::fma_of(exponent, 0x1.62e430p-1f,
                  ptx::fma_of(exponent, -0x1.05c610p-29f, ptx::fma_of(p * square, t, t + t)));
  const float special = a == 0.0f ? -kInfinity : a > 0.0f ? a : kNaN;
  return a > 0.0f && a < kInfinity ? value : special;
}

// ---- tensors

struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

template <class T>
struct ElementOf {
  using Stored = T;
  SIRDAR_DEVICE static T value(T stored) { return stored; }
};
template <>
struct ElementOf<bool> {
  using Stored = uint8_t;
  SIRDAR_DEVICE static bool value(uint8_t stored) { return stored != 0; }
};
template <>
struct ElementOf<Bf16> {
  using Stored = uint16_t;
  SIRDAR_DEVICE static float value(uint16_t stored) {
    return ptx::float_of(static_cast<uint32_t>(stored) << 16);
  }
};
template <>
struct ElementOf<Fp16> {
  using Stored = uint16_t;
  SIRDAR_DEVICE static float value(uint16_t stored) { return ptx::f16_to_float(stored); }
};

// An index outside its axis is moved to the nearest entry.
SIRDAR_DEVICE int moved(int index, int size) {
  return ptx::max_of(ptx::min_of(index, size - 1), 0);
}

// Where an element stands in its tensor, row by row, as a gradient is kept. Of a tensor with
// elements.
template <class... Indices>
SIRDAR_DEVICE int place(const TensorOperand& tensor, Indices... indices) {
  int at = 0, axis = 0;
  ((at = at * tensor.shape[axis] + moved(indices, tensor.shape[axis]), ++axis), ...);
  return at;
}

template <class T, class... Indices>
SIRDAR_DEVICE auto read(const TensorOperand& tensor, Indices... indices) {
  using Element = ElementOf<T>;
  constexpr int kLast = static_cast<int>(sizeof...(indices)) - 1;
  const auto* address = static_cast<const typename Element::Stored*>(tensor.data);
  int axis = 0;
  ((address += moved(indices, tensor.shape[axis]) *
               (axis == kLast ? static_cast<int>(tensor.stride[axis]) : tensor.stride[axis]),
    ++axis),
   ...);
  return Element::value(tensor.data == nullptr ? typename Element::Stored{}
                                               : ptx::load_constant(address));
}

}  // namespace sirdar::language
