// Stored numbers as floats, one or some neighbours at a time.
#pragma once

#include "cuda/expression/language.cuh"
#include "cuda/rows/forward/config.h"
#include "ptx/memory.cuh"
#include "shared/float_bits.h"

namespace sirdar::rows {

template <Element kElement>
struct Number;
template <>
struct Number<Element::fp32> : language::ElementOf<float> {
  SIRDAR_DEVICE static float stored(float value) { return value; }
};
// By integer arithmetic: GPUs before sm_80 have no conversion to bf16.
template <>
struct Number<Element::bf16> : language::ElementOf<language::Bf16> {
  SIRDAR_DEVICE static uint16_t stored(float value) { return float_to_bf16(value); }
};
template <>
struct Number<Element::fp16> : language::ElementOf<language::Fp16> {
  SIRDAR_DEVICE static uint16_t stored(float value) { return float_to_fp16(value); }
};

template <Element kElement>
using StoredOf = typename Number<kElement>::Stored;

template <Element kElement>
SIRDAR_DEVICE float load_number(const StoredOf<kElement>* address) {
  return Number<kElement>::value(ptx::load_constant(address));
}

// kCount neighbours as they lie in memory: 4, 8 or 16 bytes, and aligned to that.
template <Element kElement, int kCount>
struct Packet {
  static constexpr int kWords = kCount * element_bytes(kElement) / 4;
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  uint32_t words[kWords];

  SIRDAR_DEVICE static Packet load(const StoredOf<kElement>* address) {
    const void* bytes = address;
    if constexpr (kWords == 1) {
      return {{ptx::load_constant(static_cast<const uint32_t*>(bytes))}};
    } else if constexpr (kWords == 2) {
      const ptx::Float2 pair = ptx::load_constant_float2(bytes);
      return {{ptx::bits_of(pair.x), ptx::bits_of(pair.y)}};
    } else {
      const ptx::Int4 four = ptx::load_constant_int4(bytes);
      return {{static_cast<uint32_t>(four.x), static_cast<uint32_t>(four.y),
               static_cast<uint32_t>(four.z), static_cast<uint32_t>(four.w)}};
    }
  }
  SIRDAR_DEVICE float value(int i) const {
    if constexpr (kElement == Element::fp32) {
      return ptx::float_of(words[i]);
    } else {
      return Number<kElement>::value(static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2))));
    }
  }
};

}  // namespace sirdar::rows
