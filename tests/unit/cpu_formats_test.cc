// The kernels' conversions on every instruction set of this machine against shared/float_bits.h,
// which dtype_exhaustive_test checks against arithmetic: every pattern of every format, and every
// place where rounding turns.
#include <gtest/gtest.h>

#include <sirdar/tensor.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cpu/dispatch.h"
#include "shared/float_bits.h"
#include "support/kernel_tables.h"

namespace sirdar::cpu {
namespace {

struct Format {
  DType dtype;
  float (*decode)(uint32_t);
  uint32_t (*encode)(float);  // null: inputs only
  size_t index() const { return static_cast<size_t>(dtype); }
};

const Format kFormats[] = {
    {DType::bf16, [](uint32_t b) { return bf16_to_float(static_cast<uint16_t>(b)); },
     [](float x) -> uint32_t { return float_to_bf16(x); }},
    {DType::fp16, [](uint32_t b) { return fp16_to_float(static_cast<uint16_t>(b)); },
     [](float x) -> uint32_t { return float_to_fp16(x); }},
    {DType::fp8_e4m3, [](uint32_t b) { return e4m3_to_float(static_cast<uint8_t>(b)); }, nullptr},
};

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// All patterns in order, as elements of the format.
std::vector<uint8_t> all_patterns(const Format& format) {
  const size_t bytes = static_cast<size_t>(size_bytes(format.dtype));
  const uint32_t count = 1u << (8 * bytes);
  std::vector<uint8_t> memory(count * bytes);
  for (uint32_t n = 0; n < count; ++n) std::memcpy(&memory[n * bytes], &n, bytes);
  return memory;
}

TEST(CpuFormats, DecodeEveryPatternExactly) {
  for (const MicroKernels* kernels : tables()) {
    for (const Format& format : kFormats) {
      const std::vector<uint8_t> memory = all_patterns(format);
      const int count = 1 << (8 * size_bytes(format.dtype));
      std::vector<float> decoded(static_cast<size_t>(count));
      kernels->decode[format.index()](memory.data(), count, decoded.data());
      for (uint32_t n = 0; n < decoded.size(); ++n) {
        const float expected = format.decode(n);
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(decoded[n])) << name_of(kernels->isa) << " pattern " << n;
          ASSERT_EQ(std::signbit(decoded[n]), std::signbit(expected)) << n;
        } else {
          ASSERT_EQ(bits_of(decoded[n]), bits_of(expected))
              << name_of(kernels->isa) << " " << name_of(format.dtype) << " pattern " << n;
        }
      }
    }
  }
}

// Every number of the format, the point half-way to the next (the tie), and the floats next to
// both; infinities, NaNs of every kind, subnormal floats, and floats of every exponent.
std::vector<float> where_rounding_turns(const Format& format) {
  std::vector<float> result;
  const auto add_around = [&](uint32_t bits) {
    for (const uint32_t near : {bits - 1, bits, bits + 1}) {
      result.push_back(float_of(near));
      result.push_back(float_of(near ^ 0x80000000u));
    }
  };
  for (uint32_t n = 0; n + 1 < 0x8000u; ++n) {
    const float here = format.decode(n), next = format.decode(n + 1);
    if (std::isnan(here) || std::isnan(next)) continue;
    add_around(bits_of(here) == 0 ? 1 : bits_of(here));
    if (std::isinf(next)) {
      // Half a step above the largest finite number, where infinity begins.
      const float step = here - format.decode(n - 1);
      if (!std::isinf(here + step / 2)) add_around(bits_of(here + step / 2));
    } else {
      add_around(bits_of(static_cast<float>((double{here} + double{next}) / 2)));
    }
  }
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (const uint32_t mantissa : {0u, 1u, 0x1000u, 0x1001u, 0x8000u, 0x400000u, 0x7fffffu}) {
      result.push_back(float_of(exponent << 23 | mantissa));
      result.push_back(float_of(exponent << 23 | mantissa | 0x80000000u));
    }
  }
  return result;
}

TEST(CpuFormats, EncodeToNearestEven) {
  for (const MicroKernels* kernels : tables()) {
    for (const Format& format : kFormats) {
      if (format.encode == nullptr) continue;
      const std::vector<float> values = where_rounding_turns(format);
      std::vector<uint16_t> encoded(values.size());
      kernels->encode[format.index()](values.data(), static_cast<int>(values.size()),
                                      encoded.data());
      for (size_t n = 0; n < values.size(); ++n) {
        const uint32_t expected = format.encode(values[n]);
        if (std::isnan(values[n])) {
          ASSERT_TRUE(std::isnan(format.decode(encoded[n]))) << bits_of(values[n]);
          ASSERT_EQ(encoded[n] >> 15, expected >> 15) << bits_of(values[n]);
        } else {
          ASSERT_EQ(encoded[n], expected)
              << name_of(kernels->isa) << " " << name_of(format.dtype) << " of " << values[n];
        }
      }
    }
  }
}

// Lengths that are no multiple of a vector: nothing is written beyond the last element.
TEST(CpuFormats, EncodeWritesOnlyItsElements) {
  for (const MicroKernels* kernels : tables()) {
    const std::vector<float> values(40, 1.0f);
    for (int count = 0; count <= 40; ++count) {
      for (const Format& format : kFormats) {
        if (format.encode == nullptr) continue;
        std::vector<uint16_t> encoded(41, 0x5a5a);
        kernels->encode[format.index()](values.data(), count, encoded.data());
        for (int n = 0; n <= 40; ++n) {
          const uint32_t expected = n < count ? format.encode(1.0f) : 0x5a5a;
          ASSERT_EQ(encoded[static_cast<size_t>(n)], expected) << count << " " << n;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sirdar::cpu
