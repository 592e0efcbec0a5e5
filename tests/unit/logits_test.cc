// The logit pipeline: order, saturation, ALiBi distance, derivative.
#include "shared/logits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sirdar {
namespace {

TEST(Logits, OrderIsScaleSoftcapBiasAlibi) {
  const Logits<double> logits{0.5, 2.0};
  // dot 6: scaled 3, capped 2 tanh(1.5), then bias and ALiBi are added outside the cap.
  EXPECT_DOUBLE_EQ(logits.logit(6, 10, -4), 2 * std::tanh(1.5) + 10 - 4);
  EXPECT_DOUBLE_EQ(Logits<double>({-1.0, 0.0}).logit(6, 1, 0), -5);
  EXPECT_DOUBLE_EQ(Logits<double>({0.0, 0.0}).logit(6, 1, 0), 1);
}

TEST(Logits, SoftcapSaturatesAndNeverMakesNaN) {
  for (double score : {4400.0, 5000.0, 1e4, 1e30, 1e300, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(apply_softcap(score, 50.0), 50.0);
    EXPECT_EQ(apply_softcap(-score, 50.0), -50.0);
    EXPECT_GE(softcap_derivative(score, 50.0), 0.0);
    EXPECT_LT(softcap_derivative(score, 50.0), 1e-75);
  }
  EXPECT_EQ(apply_softcap(std::numeric_limits<float>::max(), 1e-30f), 1e-30f);
  EXPECT_EQ(apply_softcap(0.0f, 1e-30f), 0.0f);
  EXPECT_TRUE(std::isnan(apply_softcap(std::nan(""), 50.0)));
}

// 1 - tanh(x)^2 = 4 e^-2x / (1 + e^-2x)^2: 4 e^-40 and 4 e^-160 but for parts below a rounding, far
// below what 1 - tanh^2 can say.
TEST(Logits, SlopeOfASaturatedSoftcapIsExact) {
  EXPECT_DOUBLE_EQ(softcap_derivative(0.0, 50.0), 1.0);
  EXPECT_NEAR(softcap_derivative(1000.0, 50.0), 1.6993417021166355e-17, 1e-31);
  EXPECT_NEAR(softcap_derivative(-4000.0, 50.0), 1.3029954128830085e-69, 1e-83);
  EXPECT_NEAR(softcap_derivative(1000.0F, 50.0F), 1.6993417e-17F, 1e-23F);
  EXPECT_TRUE(std::isnan(softcap_derivative(std::nan(""), 50.0)));
}

TEST(Logits, AlibiMeasuresDistanceBothWays) {
  EXPECT_EQ(alibi_term(0.5, 7, 3), -2.0);
  EXPECT_EQ(alibi_term(0.5, 3, 7), -2.0);
  EXPECT_EQ(alibi_term(0.5, -2, 3), -2.5);  // more queries than keys: q_pos may be negative
  EXPECT_EQ(alibi_term(-0.25, 0, 4), 1.0);
}

TEST(Logits, DerivativeMatchesDifferences) {
  const Logits<double> logits{0.3, 1.7};
  for (double dot : {-9.0, -1.0, 0.0, 0.4, 5.0}) {
    const double h = 1e-5;
    const double slope = (logits.logit(dot + h, 2, 1) - logits.logit(dot - h, 2, 1)) / (2 * h);
    EXPECT_NEAR(logits.derivative(dot), slope, 1e-9);
  }
  EXPECT_EQ(Logits<double>({0.3, 0.0}).derivative(100), 0.3);
}

}  // namespace
}  // namespace sirdar
