// A finite bias is a number that is added, however low: it masks nothing by rule, and no arithmetic
// of it gives NaN.
#include <limits>

#include "edges/uniform.h"

namespace sirdar::test {
namespace {

double lowest(const std::string& dtype) {
  if (dtype == "fp16") return -65504;
  if (dtype == "bf16") return -3.3895313892515355e38;
  return std::numeric_limits<float>::lowest();
}

// B003: a whole row of the lowest number. For fp32 and bf16 every score rounds to it, so the row is
// the mean of the values; -65504 of fp16 leaves the scores visible in fp32.
TEST(FiniteBias, ARowOfTheLowestNumberIsAnOrdinaryRow) {
  for (const std::string dtype : {"fp32", "bf16", "fp16"}) {
    Call call("fwd b1 sq3 sk3 hq1 hkv1 d4 fp32 lse bias:qk:" + dtype);
    call.bias.fill_by([&](const int64_t* c) { return c[2] == 0 ? lowest(dtype) : 1.0; });
    for (const Variant& variant : variants(call.problem)) {
      SCOPED_TRACE(variant.str() + dtype);
      expect_matches_float64(call, variant);
      EXPECT_TRUE(all_finite(call.out.values()));
      if (dtype == "fp16") continue;
      for (int64_t c = 0; c < 4; ++c) {
        const double mean =
            (call.v.at({0, 0, 0, c}) + call.v.at({0, 1, 0, c}) + call.v.at({0, 2, 0, c})) / 3;
        EXPECT_NEAR(call.out.at({0, 0, 0, c}), mean, 1e-4 * (1 + std::fabs(mean)));
      }
    }
  }
}

// B004: the first keys, whole tiles of them, hold the lowest number: forward and all gradients are
// those of the remaining keys.
TEST(FiniteBias, WholeTilesOfTheLowestNumber) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    const std::string rest = " b1 hq1 hkv1 d64 " + dtype;
    Call whole("bwd sq60 sk150 bias:qk:" + dtype + " dbias" + rest);
    whole.bias.fill_by([&](const int64_t* c) { return c[3] < 128 ? lowest(dtype) : 0.0; });
    Call tail("bwd sq60 sk22" + rest);
    for (int64_t i = 0; i < 60; ++i)
      copy_row(tail.q, i, whole.q, i), copy_row(tail.dout, i, whole.dout, i);
    for (int64_t j = 0; j < 22; ++j) {
      copy_row(tail.k, j, whole.k, 128 + j);
      copy_row(tail.v, j, whole.v, 128 + j);
    }
    whole.run_forward_first();
    tail.run_forward_first();
    for (const Variant& variant : variants(whole.problem)) {
      SCOPED_TRACE(variant.str() + dtype);
      ASSERT_TRUE(whole.run(variant).ok());
      ASSERT_TRUE(tail.run(variant).ok());
      EXPECT_TRUE(close(whole.dq.values(), tail.dq.values(), whole.problem.dtype_q));
      for (int64_t j = 0; j < 150; ++j) {
        for (int64_t c = 0; c < 64; ++c) {
          const double dk = j < 128 ? 0 : tail.dk.at({0, j - 128, 0, c});
          const double dv = j < 128 ? 0 : tail.dv.at({0, j - 128, 0, c});
          ASSERT_NEAR(whole.dk.at({0, j, 0, c}), dk, 1e-2 * (1 + std::fabs(dk)));
          ASSERT_NEAR(whole.dv.at({0, j, 0, c}), dv, 1e-2 * (1 + std::fabs(dv)));
        }
      }
      expect_matches_float64(whole, variant);
    }
    Call forward("fwd sq60 sk150 lse bias:qk:" + dtype + rest);
    forward.bias.fill_by([&](const int64_t* c) { return c[3] < 128 ? lowest(dtype) : 0.0; });
    expect_all_match_float64(forward);
  }
}

// B138: very low finite numbers among ordinary ones, a length that is no multiple of a tile.
TEST(FiniteBias, LowNumbersAmongOrdinaryOnes) {
  for (const std::string dtype : {"bf16", "fp16"}) {
    for (const char* dropout : {"", " dropout:0.1"}) {
      Call call("bwd b2 sq33 sk47 hq2 hkv2 d32 " + dtype + " bias:bhqk:" + dtype + " dbias" + dropout);
      Random random(4);
      call.bias.fill_by([&](const int64_t*) {
        const double draw = random.uniform();
        return draw < 0.3 ? lowest(dtype) : draw < 0.4 ? -1e4 : random.normal();
      });
      expect_all_match_float64(call);
      for (const Tensor& tensor : call.outputs()) EXPECT_TRUE(all_finite(tensor.values()));
    }
  }
}

// Opposite extremes may meet in one score: lowest + lowest of two sources saturates to -inf by
// arithmetic, which weighs nothing and is not NaN.
TEST(FiniteBias, AlibiAndBiasTogetherMaySaturate) {
  Call call("fwd b1 sq4 sk4 hq1 hkv1 d4 fp32 bias:qk alibi lse");
  call.alibi.fill(1e38);
  call.bias.fill_by([](const int64_t* c) { return c[2] == c[3] ? 0.0 : -3e38; });
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t c = 0; c < 4; ++c)
        EXPECT_NEAR(call.out.at({0, i, 0, c}), call.v.at({0, i, 0, c}), 1e-5);
    }
  }
}

}  // namespace
}  // namespace sirdar::test
