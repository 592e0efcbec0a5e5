// Softmax sees differences only: a constant added to all logits of a row moves lse and max_logit by
// that constant and changes nothing else.
#include <gtest/gtest.h>

#include <cmath>

#include "support/call.h"

namespace sirdar::test {
namespace {

class LogitShift : public ::testing::TestWithParam<double> {};

// B133: shifts up to 1e4, which a softmax that forgets to subtract the maximum would not survive.
TEST_P(LogitShift, ABiasConstantMovesLseOnly) {
  const double shift = GetParam();
  Call plain("fwd b2 sq17 sk65 hq2 hkv1 d16 fp32 bias:q causal lse max_logit");
  Call shifted("fwd b2 sq17 sk65 hq2 hkv1 d16 fp32 bias:q causal lse max_logit");
  plain.bias.fill(0);
  shifted.bias.fill(shift);
  const double rounding = 4 * (std::fabs(shift) + 32) * 0x1p-23;
  for (const Variant& variant : few_variants(plain.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(plain.run(variant).ok());
    ASSERT_TRUE(shifted.run(variant).ok());
    EXPECT_TRUE(near(shifted.out.values(), plain.out.values(), 16 * rounding));
    for (int64_t n = 0; n < plain.lse.size(); ++n) {
      EXPECT_NEAR(shifted.lse.flat(n), plain.lse.flat(n) + shift, rounding);
      EXPECT_NEAR(shifted.max_logit.flat(n), plain.max_logit.flat(n) + shift, rounding);
    }
  }
}

// B133: in 16-bit types too; a shift off by one is invisible in theory and visible in a 16-bit
// softmax.
TEST_P(LogitShift, SixteenBitInputsKeepAnFp32Softmax) {
  const double shift = GetParam();
  for (const char* dtype : {"fp16", "bf16"}) {
    const std::string text = std::string("fwd b1 sq9 sk33 hq2 hkv2 d16 ") + dtype + " bias:q lse";
    Call plain(text), shifted(text);
    plain.bias.fill(0);
    shifted.bias.fill(shift);
    for (const Variant& variant : few_variants(plain.problem)) {
      SCOPED_TRACE(variant.str());
      ASSERT_TRUE(plain.run(variant).ok());
      ASSERT_TRUE(shifted.run(variant).ok());
      EXPECT_TRUE(close(shifted.out.values(), plain.out.values(), plain.problem.dtype_q));
    }
  }
}

// The shift made by the keys themselves: q and k get one more column of large numbers.
TEST_P(LogitShift, AConstantColumnOfTheProductMovesLseOnly) {
  const double shift = GetParam();
  Call plain("fwd b1 sq9 sk33 hq1 hkv1 d17 fp32 scale:1 lse");
  Call shifted("fwd b1 sq9 sk33 hq1 hkv1 d17 fp32 scale:1 lse");
  plain.q.fill_random(3, 0.25);
  shifted.q.fill_random(3, 0.25);
  for (int64_t i = 0; i < 9; ++i) plain.q.set({0, i, 0, 16}, 0), shifted.q.set({0, i, 0, 16}, 1);
  for (int64_t j = 0; j < 33; ++j)
    shifted.k.set({0, j, 0, 16}, shift), plain.k.set({0, j, 0, 16}, 0);
  const double rounding = 8 * (std::fabs(shift) + 32) * 0x1p-23;
  for (const Variant& variant : few_variants(plain.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(plain.run(variant).ok());
    ASSERT_TRUE(shifted.run(variant).ok());
    EXPECT_TRUE(near(shifted.out.values(), plain.out.values(), 16 * rounding));
    for (int64_t n = 0; n < plain.lse.size(); ++n) {
      EXPECT_NEAR(shifted.lse.flat(n), plain.lse.flat(n) + shift, rounding);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shifts, LogitShift,
                         ::testing::Values(1.0, -1.0, 100.0, -100.0, 1e4, -1e4));

}  // namespace
}  // namespace sirdar::test
