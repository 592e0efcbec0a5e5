// Soft-capping saturates: cap * tanh(score / cap), computed without a ratio of exponentials that
// overflows, forward and backward.
#include "edges/uniform.h"

namespace sirdar::test {
namespace {

// B022: scores of 4400, 5000, 1e4 and -1e4 under a cap of 50 are 50, 50, 50 and -50.
TEST(Softcap, HugeScoresSaturate) {
  Call call("fwd b1 sq1 sk4 hq1 hkv1 d8 fp32 scale:1 softcap:50 lse max_logit");
  call.q.fill(0).set({0, 0, 0, 0}, 100);
  call.k.fill(0);
  const double scores[] = {4400, 5000, 1e4, -1e4};
  for (int64_t j = 0; j < 4; ++j) {
    call.k.set({0, j, 0, 0}, scores[j] / 100);
    for (int64_t c = 0; c < 8; ++c) call.v.set({0, j, 0, c}, static_cast<double>(j));
  }
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    EXPECT_NEAR(call.out.at({0, 0, 0, 0}), 1, 1e-5);
    EXPECT_NEAR(call.lse.at({0, 0, 0}), 50 + std::log(3), 1e-4);
    EXPECT_NEAR(call.max_logit.at({0, 0, 0}), 50, 1e-4);
  }
}

TEST(Softcap, GradientsThroughSaturatedScoresVanish) {
  Call call("bwd b1 sq3 sk5 hq1 hkv1 d8 fp32 softcap:50");
  for (int64_t i = 0; i < 3; ++i) call.q.set({0, i, 0, 0}, 1e4);
  for (int64_t j = 0; j < 5; ++j) call.k.set({0, j, 0, 0}, j % 2 ? 1e4 : -1e4);
  call.run_forward_first();
  for (const Variant& variant : variants(call.problem)) {
    expect_matches_float64(call, variant);
    EXPECT_TRUE(all_equal(call.dq.values(), 0));
    EXPECT_TRUE(all_equal(call.dk.values(), 0));
  }
}

// One score of 70 under a cap of 2, built in and as text, beside one of 0: weights e^2 / (e^2 + 1)
// and 1 / (e^2 + 1), whose product is 0.10499358540350652, and a slope of 4 e^-70
// = 1.590179894363e-30, which is no difference of two numbers near 1 in any format.
TEST(Softcap, GradientsOfSaturatedScoresAreExact) {
  for (const char* cap : {"softcap:2", "score_mod:\"2 * tanh(score / 2)\""}) {
    Call call(std::string("bwd b1 sq1 sk2 hq1 hkv1 d1 fp32 scale:1 ") + cap);
    call.q.set({0, 0, 0, 0}, 1);
    call.k.set({0, 0, 0, 0}, 70);
    call.k.set({0, 1, 0, 0}, 0);
    call.v.set({0, 0, 0, 0}, 1);
    call.v.set({0, 1, 0, 0}, 0);
    call.dout.set({0, 0, 0, 0}, 1);
    call.run_forward_first();
    for (const Variant& variant : variants(call.problem)) {
      ASSERT_TRUE(call.run(variant).ok());
      EXPECT_NEAR(call.dk.at({0, 0, 0, 0}) / 1.669586885458e-31, 1, 2e-6) << cap << variant.str();
      EXPECT_NEAR(call.dq.at({0, 0, 0, 0}) / 1.168710819821e-29, 1, 2e-6) << cap << variant.str();
      EXPECT_NEAR(call.dk.at({0, 1, 0, 0}), -0.10499358540350652, 1e-7) << cap << variant.str();
    }
  }
}

// B127: several caps in one process, each its own result: nothing is cached by the first.
TEST(Softcap, CapsDoNotMix) {
  for (const char* op : {"fwd", "bwd"}) {
    for (const char* cap : {" softcap:15", " softcap:30", "", " softcap:15", " softcap:1e-3",
                            " softcap:1e6", " softcap:3e38"}) {
      Call call(std::string(op) + " b2 sq9 sk17 hq2 hkv1 d16 fp32 causal" + cap);
      for (int64_t n = 0; n < call.q.size(); ++n) call.q.set_flat(n, 4 * call.q.flat(n));
      expect_all_match_float64(call);
    }
  }
}

TEST(Softcap, IsAppliedBeforeTheBias) {
  Call call("fwd b1 sq1 sk2 hq1 hkv1 d1 fp32 scale:1 softcap:2 bias:k lse");
  call.q.fill(1000);
  call.k.fill({1000, 1000});
  call.v.fill({0, 1});
  call.bias.fill({0, std::log(3.0)});
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    EXPECT_NEAR(call.out.at({0, 0, 0, 0}), 0.75, 1e-6);
    EXPECT_NEAR(call.lse.at({0, 0, 0}), 2 + std::log(4.0), 1e-5);
  }
}

TEST(Softcap, InfiniteScoresSaturateToo) {
  Call call("fwd b1 sq1 sk2 hq1 hkv1 d1 fp32 scale:1 softcap:2");
  call.q.fill(1);
  call.k.fill({kInfinity, -kInfinity});
  call.v.fill({0, 1});
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    EXPECT_NEAR(call.out.at({0, 0, 0, 0}), std::exp(-2) / (std::exp(2) + std::exp(-2)), 1e-6);
  }
}

TEST(Softcap, MustBeAPositiveNumberOrZero) {
  for (const float cap :
       {-1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Problem p = Problem::parse("fwd sq4 sk4 d8 fp32").value();
    p.softcap = cap;
    EXPECT_EQ(p.validate().argument(), "softcap");
  }
}

}  // namespace
}  // namespace sirdar::test
