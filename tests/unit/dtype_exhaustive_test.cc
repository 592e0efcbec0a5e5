// Every bit pattern of bf16, fp16, e4m3 and e5m2 against ldexp arithmetic that shares no code with
// shared/float_bits.h: decoding exactly, encoding as the nearest representable number.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "shared/dtype.h"
#include "shared/float_bits.h"

namespace sirdar {
namespace {

struct Spec {
  const char* name;
  int exponent, mantissa;
  bool has_infinity;
  unsigned (*encode)(float);
  float (*decode)(unsigned);
  unsigned count() const { return 1u << (1 + exponent + mantissa); }
};

const Spec kSpecs[] = {
    {"bf16", 8, 7, true, [](float x) -> unsigned { return float_to_bf16(x); },
     [](unsigned b) { return bf16_to_float(static_cast<unsigned short>(b)); }},
    {"fp16", 5, 10, true, [](float x) -> unsigned { return float_to_fp16(x); },
     [](unsigned b) { return fp16_to_float(static_cast<unsigned short>(b)); }},
    {"fp8_e4m3", 4, 3, false, [](float x) -> unsigned { return float_to_e4m3(x); },
     [](unsigned b) { return e4m3_to_float(static_cast<unsigned char>(b)); }},
    {"fp8_e5m2", 5, 2, true, [](float x) -> unsigned { return float_to_e5m2(x); },
     [](unsigned b) { return e5m2_to_float(static_cast<unsigned char>(b)); }},
};

// The number a pattern stands for, from the definition of the format.
double meaning(const Spec& spec, unsigned bits) {
  const int m = static_cast<int>(bits % (1u << spec.mantissa));
  const int e = static_cast<int>((bits >> spec.mantissa) % (1u << spec.exponent));
  const double sign = bits >> (spec.exponent + spec.mantissa) ? -1 : 1;
  const int all = (1 << spec.exponent) - 1, bias = all / 2;
  if (spec.has_infinity && e == all) {
    return m == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  if (!spec.has_infinity && e == all && m == (1 << spec.mantissa) - 1) return std::nan("");
  const int scaled = e == 0 ? m : m + (1 << spec.mantissa);
  return sign * std::ldexp(scaled, (e == 0 ? 1 : e) - bias - spec.mantissa);
}

class Format : public testing::TestWithParam<Spec> {};

TEST_P(Format, DecodesEveryPattern) {
  const Spec& spec = GetParam();
  for (unsigned bits = 0; bits < spec.count(); ++bits) {
    const double expected = meaning(spec, bits);
    const double actual = spec.decode(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << bits;
    } else {
      ASSERT_EQ(actual, expected) << bits;
    }
    ASSERT_EQ(std::signbit(actual), bits >= spec.count() / 2) << bits;
  }
}

TEST_P(Format, EveryPatternSurvivesTheRoundTripAndNaNStaysQuiet) {
  const Spec& spec = GetParam();
  for (unsigned bits = 0; bits < spec.count(); ++bits) {
    const float value = spec.decode(bits);
    const unsigned back = spec.encode(value);
    if (std::isnan(value)) {
      uint32_t raw;
      std::memcpy(&raw, &value, 4);
      ASSERT_TRUE(raw & 0x400000u) << "decoded NaN is not quiet: " << bits;
      ASSERT_TRUE(std::isnan(meaning(spec, back))) << bits;
      if (spec.has_infinity) {
        ASSERT_EQ(back, bits | 1u << (spec.mantissa - 1)) << bits;
      }
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

// Between each pair of neighbours: the middle goes to the even one, either side of it to the
// nearer.
TEST_P(Format, EncodesToNearestEven) {
  const Spec& spec = GetParam();
  for (unsigned bits = 0; bits + 1 < spec.count() / 2; ++bits) {
    const double low = meaning(spec, bits), high = meaning(spec, bits + 1);
    if (!std::isfinite(low) || !std::isfinite(high)) break;
    const float middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(middle, (low + high) / 2) << "the test needs an exact middle";
    const float infinity = std::numeric_limits<float>::infinity();
    const unsigned sign = spec.count() / 2;
    ASSERT_EQ(spec.encode(middle), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(spec.encode(-middle), sign + (bits % 2 == 0 ? bits : bits + 1));
    ASSERT_EQ(spec.encode(std::nextafterf(middle, 0)), bits);
    ASSERT_EQ(spec.encode(std::nextafterf(middle, infinity)), bits + 1);
  }
}

TEST_P(Format, OverflowAndInfinity) {
  const Spec& spec = GetParam();
  unsigned last = 0;
  while (std::isfinite(meaning(spec, last + 1))) ++last;
  const double step = meaning(spec, last) - meaning(spec, last - 1);
  const double edge = meaning(spec, last) + step / 2;  // exactly half way past the largest number
  const unsigned beyond = last + 1, sign = spec.count() / 2;
  EXPECT_EQ(spec.encode(std::nextafterf(static_cast<float>(edge), 0)), last);
  // The largest number is odd where overflow is infinity; e4m3's (0x7e) is even and keeps the tie.
  EXPECT_EQ(spec.encode(static_cast<float>(edge)), last % 2 == 0 ? last : beyond);
  EXPECT_EQ(spec.encode(std::nextafterf(static_cast<float>(edge), INFINITY)), beyond);
  EXPECT_EQ(spec.encode(-std::numeric_limits<float>::max()), sign + beyond);
  EXPECT_EQ(spec.encode(std::numeric_limits<float>::infinity()), beyond);
  EXPECT_EQ(spec.encode(-std::numeric_limits<float>::infinity()), sign + beyond);
  const double meant = meaning(spec, beyond);
  EXPECT_TRUE(spec.has_infinity ? std::isinf(meant) : std::isnan(meant));
}

// Random floats of every exponent against a search for the nearest representable number.
TEST_P(Format, RandomFloatsGoToTheNearest) {
  const Spec& spec = GetParam();
  std::mt19937 random(1);
  std::vector<double> table;
  for (unsigned bits = 0; std::isfinite(meaning(spec, bits)); ++bits) {
    table.push_back(meaning(spec, bits));
  }
  for (int trial = 0; trial < 200000; ++trial) {
    const uint32_t raw = random() & 0x7fffffffu;
    float value;
    std::memcpy(&value, &raw, 4);
    if (!std::isfinite(value) || value > table.back()) continue;
    const unsigned bits = spec.encode(value);
    const double error = std::abs(table[bits] - value);
    if (bits > 0) {
      ASSERT_LE(error, std::abs(table[bits - 1] - value)) << value;
    }
    if (bits + 1 < table.size()) {
      ASSERT_LE(error, std::abs(table[bits + 1] - value)) << value;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Format, testing::ValuesIn(kSpecs),
                         [](const auto& param) { return param.param.name; });

TEST(DType, TraitsOfRows) {
  EXPECT_EQ(kDTypes[0].epsilon(), std::numeric_limits<float>::epsilon());
  EXPECT_EQ(kDTypes[0].min_subnormal(), std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(kDTypes[0].min_normal(), std::numeric_limits<float>::min());
  for (const Spec& spec : kSpecs) {
    for (const DTypeRow& row : kDTypes) {
      if (std::string_view(row.name) != spec.name) continue;
      EXPECT_EQ(row.epsilon(), spec.decode(spec.encode(1.0f) + 1) - 1.0) << row.name;
      EXPECT_EQ(row.min_subnormal(), spec.decode(1)) << row.name;
      EXPECT_EQ(row.bits, 1 + spec.exponent + spec.mantissa);
    }
  }
  for (int i = 0; i < static_cast<int>(std::size(kDTypes)); ++i) EXPECT_EQ(kDTypes[i].value, i);
  EXPECT_FALSE(kDTypes[7].is_float());
}

static_assert(float_to_bf16(1.0f) == 0x3f80 && fp16_to_float(0x3c00) == 1.0f);

}  // namespace
}  // namespace sirdar
