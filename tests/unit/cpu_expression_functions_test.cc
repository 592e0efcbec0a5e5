// The functions of expressions on every instruction set against double, over their whole range.
#include <gtest/gtest.h>

#include <bit>
#include <cfloat>
#include <cmath>

#include "cpu/dispatch.h"
#include "support/vector_evaluation.h"

namespace sirdar {
namespace {

using expression::Kind;
using expression::Program;

class CpuExpressionFunctions : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!cpu::choose_isa(Device::host(), std::string(name_of(GetParam()))).ok())
      GTEST_SKIP() << "this machine lacks it";
  }

  // The expression in `score` at each x.
  std::vector<float> values(const std::string& text, const std::vector<float>& x) {
    const Program program = Program::parse(Kind::score_mod, text, {}, {}).value();
    const cpu::MicroKernels& kernels = cpu::kernels_for(GetParam());
    const expression::Box box{.q = {0, 1}, .k = {0, static_cast<Position>(x.size())}};
    std::vector<float> result;
    for (const int32_t bits : testing::evaluate(kernels, 1, program, {}, box, x))
      result.push_back(std::bit_cast<float>(bits));
    return result;
  }

  // Largest |error| relative to the value; below the smallest normal only a few subnormals count.
  double worst(const std::string& text, const std::vector<float>& x, double (*exact)(double)) {
    const std::vector<float> y = values(text, x);
    double worst = 0;
    for (size_t n = 0; n < x.size(); ++n) {
      const double expected = exact(x[n]);
      if (std::abs(expected) > FLT_MAX * (1 + 1e-6)) {
        EXPECT_TRUE(std::isinf(y[n])) << text << " at " << x[n];
      } else if (std::abs(expected) < FLT_MIN) {
        EXPECT_NEAR(y[n], expected, 4 * static_cast<double>(FLT_TRUE_MIN))
            << text << " at " << x[n];
      } else if (std::abs(expected) < FLT_MAX * (1 - 1e-6)) {
        worst = std::max(worst, std::abs(y[n] - expected) / std::abs(expected));
      }
    }
    return worst;
  }
};

std::vector<float> range(float from, float to, int count) {
  std::vector<float> x;
  for (int n = 0; n < count; ++n)
    x.push_back(from + (to - from) * static_cast<float>(n) / static_cast<float>(count - 1));
  return x;
}

// Every exponent, several significands, both signs if wanted.
std::vector<float> all_scales(bool negative) {
  std::vector<float> x;
  for (uint32_t bits = 1; bits < 0x7f800000u; bits += 0x31234) {
    x.push_back(std::bit_cast<float>(bits));
    if (negative) x.push_back(-x.back());
  }
  return x;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

constexpr double kAllowed = 5e-7;

TEST_P(CpuExpressionFunctions, AreAsAccurateAsStated) {
  for (const auto& x : {range(-110, 95, 40001), all_scales(true)}) {
    EXPECT_LT(worst("exp(score)", x, std::exp), kAllowed);
    EXPECT_LT(worst("exp2(score)", x, std::exp2), kAllowed);
    EXPECT_LT(worst("tanh(score)", x, std::tanh), kAllowed);
    EXPECT_LT(worst("sigmoid(score)", x, sigmoid), kAllowed);
  }
  EXPECT_LT(worst("exp2(score)", range(-160, 135, 40001), std::exp2), kAllowed);
  for (const auto& x : {range(0.4f, 2.5f, 40001), all_scales(false)}) {
    EXPECT_LT(worst("log(score)", x, std::log), kAllowed);
    EXPECT_LT(worst("sqrt(score)", x, std::sqrt), 1e-7);
  }
}

TEST_P(CpuExpressionFunctions, HaveTheirLimits) {
  const float inf = INFINITY, nan = NAN;
  const std::vector<float> x{inf, -inf, nan, 0.0f, -0.0f, -1.0f};
  const auto same = [&](const std::string& text, const std::vector<float>& expected) {
    const std::vector<float> y = values(text, x);
    for (size_t n = 0; n < x.size(); ++n) {
      EXPECT_TRUE(std::isnan(expected[n])
                      ? std::isnan(y[n])
                      : std::bit_cast<uint32_t>(y[n]) == std::bit_cast<uint32_t>(expected[n]))
          << text << " of " << x[n] << " is " << y[n];
    }
  };
  const float e = std::exp(-1.0f);
  same("exp(score) * (score == -1 ? 0.0 : 1.0)", {inf, 0, nan, 1, 1, 0});
  same("exp2(score)", {inf, 0, nan, 1, 1, 0.5f});
  same("log(score)", {inf, nan, nan, -inf, -inf, nan});
  same("sqrt(score)", {inf, nan, nan, 0, -0.0f, nan});
  same("score == -1 ? 0.0 : tanh(score)", {1, -1, nan, 0, -0.0f, 0});
  same("score == -1 ? 0.0 : sigmoid(score)", {1, 0, nan, 0.5f, 0.5f, 0});
  same("floor(score)", {inf, -inf, nan, 0, -0.0f, -1});
  same("abs(score)", {inf, inf, nan, 0, 0, 1});
  same("-score", {-inf, inf, nan, -0.0f, 0, 1});
  same("min(score, 0.0)", {0, -inf, nan, 0, -0.0f, -1});
  same("max(0.0, score)", {inf, 0, nan, 0, 0, 0});
  same("1.0 / score", {0, -0.0f, nan, inf, -inf, -1});
  same("score != score ? 7.0 : 3.0", {3, 3, 7, 3, 3, 3});
  same("score >= score ? 7.0 : 3.0", {7, 7, 3, 7, 7, 7});
  EXPECT_NEAR(values("exp(score)", {-1.0f})[0], e, 1e-7f);
}

TEST_P(CpuExpressionFunctions, FloorIsExact) {
  std::vector<float> x = all_scales(true);
  for (const float one : range(-20, 20, 1001)) x.push_back(one);
  const std::vector<float> y = values("floor(score)", x);
  for (size_t n = 0; n < x.size(); ++n) ASSERT_EQ(y[n], std::floor(x[n])) << x[n];
}

// Division of ints by what is known beforehand is a product with a reciprocal.
TEST_P(CpuExpressionFunctions, IntsDivideAsInC) {
  const std::vector<int32_t> tops{0,
                                  1,
                                  -1,
                                  2,
                                  7,
                                  -7,
                                  999999,
                                  -999999,
                                  16777217,
                                  INT32_MAX,
                                  INT32_MIN,
                                  INT32_MAX - 1,
                                  1 << 30,
                                  46341 * 46340,
                                  -46341 * 46340};
  const std::vector<int32_t> divisors{1, 2, 3, 5, 7, 10, 128, 641, 46340, 65537, INT32_MAX};
  const TensorView top =
      view_of_const(tops.data(), DType::int32, {static_cast<int64_t>(tops.size())});
  const TensorView bottom =
      view_of_const(divisors.data(), DType::int32, {static_cast<int64_t>(divisors.size())});
  const std::vector<ExpressionTensor> tensors{{"top", DType::int32, 1},
                                              {"bottom", DType::int32, 1}};
  const std::vector<TensorView> views{top, bottom};
  const cpu::MicroKernels& kernels = cpu::kernels_for(GetParam());
  for (size_t d = 0; d < divisors.size(); ++d) {
    const std::string literal = std::to_string(divisors[d]);
    const std::string variable = "bottom[" + std::to_string(d) + " + 0 * q]";
    for (const std::string& divisor : {literal, variable}) {
      const std::string text =
          "top[k] / " + divisor + " == want[k] && top[k] % " + divisor + " == rest[k] && q >= 0";
      std::vector<int32_t> want, rest;
      for (const int32_t one : tops) {
        want.push_back(one / divisors[d]);
        rest.push_back(one % divisors[d]);
      }
      std::vector<ExpressionTensor> all = tensors;
      all.push_back({"want", DType::int32, 1});
      all.push_back({"rest", DType::int32, 1});
      std::vector<TensorView> all_views = views;
      const int64_t count = static_cast<int64_t>(tops.size());
      all_views.push_back(view_of_const(want.data(), DType::int32, {count}));
      all_views.push_back(view_of_const(rest.data(), DType::int32, {count}));
      const Program program = Program::parse(Kind::mask_mod, text, all, {}).value();
      const expression::Box box{.q = {0, 3}, .k = {0, count}};
      for (const int32_t value : testing::evaluate(kernels, 1, program, {all_views, {}}, box, {}))
        ASSERT_EQ(value, -1) << text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, CpuExpressionFunctions,
                         ::testing::Values(Isa::scalar, Isa::avx2, Isa::avx512),
                         [](const auto& one) { return std::string(name_of(one.param)); });

}  // namespace
}  // namespace sirdar
