// A sink is one more logit in the denominator, with no value behind it.
#include "edges/uniform.h"

namespace sirdar::test {
namespace {

// With q = 0, n visible keys and a sink s: out = mean * n / (n + e^s), lse = ln(n + e^s).
TEST(Sinks, AddOneLogitToTheDenominator) {
  for (const char* rest : {"", " causal", " window:3,0", " softcap:4"}) {
    Call call(std::string("fwd b2 sq9 sk9 hq3 hkv1 d8 fp32 sink lse max_logit") + rest);
    make_uniform(call);
    const double values[] = {0, std::log(5.0), -40};
    call.sink.fill({values[0], values[1], values[2]});
    for (const Variant& variant : variants(call.problem)) {
      SCOPED_TRACE(call.problem.str() + variant.str());
      ASSERT_TRUE(call.run(variant).ok());
      for (int64_t h = 0; h < 3; ++h) {
        for (int64_t i = 0; i < 9; ++i) {
          const int64_t first = call.problem.mask.window_left ? std::max<int64_t>(0, i - 3) : 0;
          const bool limited = call.problem.mask.is_causal || call.problem.mask.window_left;
          const int64_t last = limited ? i : 8;
          const double count = static_cast<double>(last - first + 1);
          const double sum = static_cast<double>((first + 1 + last + 1) * (last - first + 1)) / 2;
          const double weight = count + std::exp(values[h]);
          EXPECT_NEAR(call.out.at({1, i, h, 7}), sum / weight, 1e-5);
          EXPECT_NEAR(call.lse.at({1, h, i}), std::log(weight), 1e-5);
          EXPECT_EQ(call.max_logit.at({1, h, i}), 0);
        }
      }
    }
  }
}

TEST(Sinks, ExtremesAreExact) {
  Call call("fwd b1 sq4 sk4 hq3 hkv3 d8 fp32 sink lse"),
      without("fwd b1 sq4 sk4 hq3 hkv3 d8 fp32 lse");
  call.sink.fill({-kInfinity, 1e30, -1e30});
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    ASSERT_TRUE(without.run(variant).ok());
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t c = 0; c < 8; ++c) {
        EXPECT_NEAR(call.out.at({0, i, 0, c}), without.out.at({0, i, 0, c}), 1e-5);
        EXPECT_EQ(call.out.at({0, i, 1, c}), 0);
        EXPECT_NEAR(call.out.at({0, i, 2, c}), without.out.at({0, i, 2, c}), 1e-5);
      }
      EXPECT_EQ(call.lse.at({0, 1, i}), static_cast<float>(1e30));
    }
  }
}

// B051: packed sequences of uneven lengths, unequal head counts, a window and a sink, backward.
TEST(Sinks, PackedSequencesWithAWindowBackward) {
  for (const char* dtype : {"fp32", "bf16"}) {
    Call call(std::string("bwd b5 sq40 sk40 hq8 hkv1 d192 ragged_q:130 ragged_k:130 causal "
                          "window:31,0 sink dsink ") +
                  dtype,
              {{2, 40, 40, 40, 8}, {2, 40, 40, 40, 8}, {}, {}});
    expect_all_match_float64(call);
  }
}

// The gradient of the sink by hand: one row, D = dout . out - dlse, dsink = -e^(s - lse) D.
TEST(Sinks, GradientByHand) {
  Call call("bwd b1 sq1 sk2 hq1 hkv1 d1 fp32 scale:1 sink dsink dlse");
  call.q.fill(0);
  call.v.fill({1, 3});
  call.sink.fill(std::log(2.0));
  call.dout.fill(5);
  call.dlse.fill(0.5);
  call.run_forward_first();
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    // weights 1/4, 1/4 and 1/2 for the sink; out = 1; D = 5 * 1 - 0.5
    EXPECT_NEAR(call.dsink.at({0}), -0.5 * 4.5, 1e-5);
    EXPECT_NEAR(call.dv.at({0, 1, 0, 0}), 1.25, 1e-5);
    EXPECT_NEAR(call.dk.at({0, 0, 0, 0}), 0, 1e-6);
  }
}

}  // namespace
}  // namespace sirdar::test
