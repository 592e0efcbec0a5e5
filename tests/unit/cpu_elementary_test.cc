// The kernels' own exp and tanh, on every instruction set of this machine, against float64.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/dispatch.h"
#include "support/kernel_tables.h"

namespace sirdar::cpu {
namespace {

using Function = void (*)(const float*, float*, int);

std::vector<float> evaluate(Function function, const std::vector<float>& x) {
  std::vector<float> padded = x;
  padded.resize((x.size() + 15) / 16 * 16, 0.0f);
  std::vector<float> y(padded.size());
  function(padded.data(), y.data(), static_cast<int>(padded.size()));
  y.resize(x.size());
  return y;
}

std::vector<float> ramp(float from, float to, int count) {
  std::vector<float> x;
  for (int i = 0; i < count; ++i)
    x.push_back(from + (to - from) * static_cast<float>(i) / static_cast<float>(count - 1));
  return x;
}

// Kernels with a single float for ln 2 come close to the bound at the far end, 3.87.
TEST(CpuElementary, ExpIsWithinFourEpsilonsWhereFloatsAreNormal) {
  std::vector<float> x;
  const auto add_floats = [&](float size, float last, uint32_t step) {
    for (uint32_t bits = std::bit_cast<uint32_t>(size); bits <= std::bit_cast<uint32_t>(last);
         bits += step)
      x.push_back(-std::bit_cast<float>(bits));
  };
  add_floats(0x1p-30f, 64.0f, 1009);
  add_floats(64.0f, 87.68f, 11);
  for (const MicroKernels* table : tables()) {
    const std::vector<float> y = evaluate(table->exp, x);
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      ASSERT_LE(std::fabs(y[i] - exact), 4 * 0x1p-23 * exact)
          << name_of(table->isa) << " exp(" << x[i] << ")";
    }
  }
}

TEST(CpuElementary, ExpOfZeroIsOneAndFarBelowIsZeroExactly) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {
      0.0f, -0.0f, -88.0f, -104.0f, -1e30f, std::numeric_limits<float>::lowest(), -infinity};
  for (const MicroKernels* table : tables()) {
    const std::vector<float> y = evaluate(table->exp, x);
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_EQ(y[1], 1.0f);
    for (size_t i = 2; i < x.size(); ++i)
      EXPECT_EQ(y[i], 0.0f) << name_of(table->isa) << " exp(" << x[i] << ")";
  }
}

TEST(CpuElementary, NansPass) {
  const std::vector<float> x = {std::numeric_limits<float>::quiet_NaN(), -1.0f};
  for (const MicroKernels* table : tables()) {
    for (const Function function : {table->exp, table->tanh}) {
      const std::vector<float> y = evaluate(function, x);
      EXPECT_TRUE(std::isnan(y[0])) << name_of(table->isa);
      EXPECT_FALSE(std::isnan(y[1])) << name_of(table->isa);
    }
  }
}

TEST(CpuElementary, TanhIsWithinFourEpsilonsAndSaturates) {
  std::vector<float> x = ramp(-12.0f, 12.0f, 200001);
  for (float small = 1e-30f; small < 1.0f; small *= 1.7f) x.push_back(small);
  for (const MicroKernels* table : tables()) {
    const std::vector<float> y = evaluate(table->tanh, x);
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::tanh(static_cast<double>(x[i]));
      ASSERT_LE(std::fabs(y[i] - exact), 4 * 0x1p-23 * std::fabs(exact))
          << name_of(table->isa) << " tanh(" << x[i] << ")";
      ASSERT_LE(std::fabs(y[i]), 1.0f);
    }
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> ends =
        evaluate(table->tanh, {infinity, -infinity, 1e30f, -1e30f, 0.0f});
    EXPECT_EQ(ends, (std::vector<float>{1.0f, -1.0f, 1.0f, -1.0f, 0.0f}));
  }
}

}  // namespace
}  // namespace sirdar::cpu
