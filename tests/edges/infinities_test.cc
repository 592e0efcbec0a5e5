// Infinite, NaN and enormous scores that are visible: what float64 would say, and only where it
// would.
#include "edges/uniform.h"

namespace sirdar::test {
namespace {

// B016: every logit of a row far below any finite starting maximum; the differences decide.
TEST(Infinities, VeryLowRowsAreOrdinarySoftmaxes) {
  for (const char* dtype : {"fp32", "bf16"}) {
    Call call(std::string("fwd b1 sq3 sk20 hq1 hkv1 d128 lse ") + dtype);
    for (int64_t i = 0; i < 3; ++i) call.q.set({0, i, 0, 0}, 448);
    for (int64_t j = 0; j < 20; ++j)
      call.k.set({0, j, 0, 0}, -1880 - 8 * static_cast<double>(j % 3));
    expect_all_match_float64(call);
    EXPECT_LT(call.lse.at({0, 0, 0}), -5e4);
    EXPECT_NE(call.out.at({0, 0, 0, 0}), 0);
  }
}

TEST(Infinities, ScoresOfAnyFiniteLevel) {
  for (const double level : {1e30, -1e30, 1e37, -1e37}) {
    Call call("fwd b1 sq2 sk3 hq1 hkv1 d1 fp32 scale:1 lse max_logit");
    call.q.fill(1);
    call.k.fill({level, level, 2 * level});
    call.v.fill({1, 3, 10});
    const bool up = level > 0;
    for (const Variant& variant : variants(call.problem)) {
      SCOPED_TRACE(variant.str() + " " + std::to_string(level));
      ASSERT_TRUE(call.run(variant).ok());
      EXPECT_FLOAT_EQ(static_cast<float>(call.out.at({0, 1, 0, 0})), up ? 10.0f : 2.0f);
      EXPECT_NEAR(call.lse.at({0, 0, 1}) / ((up ? 2 : 1) * level), 1, 1e-6);
      EXPECT_NEAR(call.max_logit.at({0, 0, 1}) / ((up ? 2 : 1) * level), 1, 1e-6);
    }
  }
}

TEST(Infinities, PlusInfinityMakesItsRowNanAndNoOther) {
  Call call("fwd b2 sq6 sk9 hq2 hkv1 d8 fp32 bias lse");
  call.bias.set({0, 1, 3, 4}, kInfinity);
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    for (int64_t n = 0; n < call.out.size(); ++n) {
      const int64_t row = n / 8;
      const bool poisoned = row == 3 * 2 + 1;
      EXPECT_EQ(std::isnan(call.out.flat(n)), poisoned) << n;
    }
  }
}

// A NaN is the largest logit, but not beside +inf, which is the largest whatever the NaN stands
// for.
TEST(Infinities, TheLargestLogitOfInfinityAndNan) {
  Call call("fwd b1 sq1 sk4 hq1 hkv1 d1 fp32 scale:1 bias lse max_logit");
  call.q.fill(1);
  call.k.fill({1, 2, 3, 4});
  call.v.fill(1);
  const auto expect_largest = [&](std::vector<double> bias, double wanted) {
    call.bias.fill(bias);
    for (const Variant& variant : variants(call.problem)) {
      SCOPED_TRACE(variant.str());
      ASSERT_TRUE(call.run(variant).ok());
      const double largest = call.max_logit.at({0, 0, 0});
      EXPECT_TRUE(std::isnan(wanted) ? std::isnan(largest) : largest == wanted) << largest;
      EXPECT_TRUE(std::isnan(call.lse.at({0, 0, 0})));
      EXPECT_TRUE(std::isnan(call.out.at({0, 0, 0, 0})));
    }
  };
  expect_largest({0, 0, kNan, 0}, kNan);
  expect_largest({0, kInfinity, 0, 0}, kInfinity);
  expect_largest({0, kInfinity, kNan, 0}, kInfinity);
  expect_largest({0, kNan, kInfinity, 0}, kInfinity);
  expect_largest({kNan, kNan, kNan, kNan}, kNan);
}

TEST(Infinities, MinusInfinityByArithmeticWeighsNothing) {
  Call call("fwd b1 sq2 sk3 hq1 hkv1 d1 fp32 scale:1 lse max_logit");
  call.q.fill({1, 1});
  call.k.fill({-kInfinity, 0, 0});
  call.v.fill({100, 1, 3});
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    EXPECT_FLOAT_EQ(static_cast<float>(call.out.at({0, 0, 0, 0})), 2);
    EXPECT_NEAR(call.lse.at({0, 0, 0}), std::log(2), 1e-6);
  }
  call.k.fill({-kInfinity, -kInfinity, -kInfinity});
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    EXPECT_EQ(call.out.at({0, 1, 0, 0}), 0);
    EXPECT_EQ(call.lse.at({0, 0, 1}), -kInfinity);
    EXPECT_EQ(call.max_logit.at({0, 0, 1}), -kInfinity);
  }
}

// NaN in one query poisons that query; in one key, the rows that see it; in one value column, that
// column of the rows that see it.
TEST(Infinities, NanReachesWhatDependsOnItAndNothingElse) {
  const std::string text = "fwd b2 sq10 sk10 hq2 hkv1 d8 fp32 causal lse";
  const auto expect_nan = [&](Call& call,
                              const std::function<bool(int64_t, int64_t, int64_t, int64_t)>& is_nan,
                              bool in_lse) {
    for (const Variant& variant : variants(call.problem)) {
      SCOPED_TRACE(variant.str());
      ASSERT_TRUE(call.run(variant).ok());
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t i = 0; i < 10; ++i) {
          for (int64_t h = 0; h < 2; ++h) {
            for (int64_t c = 0; c < 8; ++c) {
              ASSERT_EQ(std::isnan(call.out.at({b, i, h, c})), is_nan(b, i, h, c))
                  << b << " " << i << " " << h << " " << c;
            }
            ASSERT_EQ(std::isnan(call.lse.at({b, h, i})), in_lse && is_nan(b, i, h, 0));
          }
        }
      }
    }
  };
  Call query(text), key(text), value(text);
  query.q.set({1, 4, 1, 2}, kNan);
  expect_nan(
      query, [](auto b, auto i, auto h, auto) { return b == 1 && i == 4 && h == 1; }, true);
  key.k.set({0, 6, 0, 2}, kNan);
  expect_nan(
      key, [](auto b, auto i, auto, auto) { return b == 0 && i >= 6; }, true);
  value.v.set({0, 6, 0, 2}, kNan);
  expect_nan(
      value, [](auto b, auto i, auto, auto c) { return b == 0 && i >= 6 && c == 2; }, false);
}

// The same for gradients: a NaN in dout of one row reaches that row of dq and the keys it sees.
TEST(Infinities, NanInAnIncomingGradientStaysInItsRow) {
  Call call("bwd b2 sq6 sk6 hq1 hkv1 d4 fp32 causal");
  call.dout.set({0, 2, 0, 1}, kNan);
  call.run_forward_first();
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    for (int64_t i = 0; i < 6; ++i) {
      EXPECT_EQ(std::isnan(call.dq.at({0, i, 0, 0})), i == 2);
      EXPECT_EQ(std::isnan(call.dk.at({0, i, 0, 0})), i <= 2);
      EXPECT_EQ(std::isnan(call.dv.at({0, i, 0, 1})), i <= 2);
      EXPECT_FALSE(std::isnan(call.dv.at({0, i, 0, 0})));
      EXPECT_FALSE(std::isnan(call.dk.at({1, i, 0, 0})));
    }
  }
}

// Values so large that the sum of all keys' values is still finite in fp32: so is their mean.
TEST(Infinities, LargeValuesDoNotOverflowTheMean) {
  Call call("fwd b1 sq2 sk9 hq1 hkv1 d4 fp32");
  call.q.fill(0);
  call.v.fill(3e37);
  for (const Variant& variant : variants(call.problem)) {
    ASSERT_TRUE(call.run(variant).ok());
    for (const double value : call.out.values()) EXPECT_NEAR(value / 3e37, 1, 1e-5);
  }
}

}  // namespace
}  // namespace sirdar::test
