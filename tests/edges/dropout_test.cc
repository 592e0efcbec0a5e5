// Dropout: reproducible from seed and offset, the right rate, the same pattern forward and
// backward, and no effect on lse.
#include "edges/uniform.h"

namespace sirdar::test {
namespace {

constexpr int64_t kSize = 64;

// q = 0 and V the identity: out[i][j] is the dropped and rescaled weight of key j itself.
Call weights_call(const char* extra) {
  Call call("fwd b2 sq64 sk64 hq2 hkv2 d64 fp32 dropout:0.5 " + std::string(extra));
  call.q.fill(0);
  call.v.fill_by([](const int64_t* c) { return c[1] == c[3]; });
  return call;
}

// B120: equal seeds give equal patterns, at other addresses and after other allocations; others
// differ.
TEST(Dropout, TheSeedIsAValue) {
  for (const Variant& variant : variants(weights_call("").problem)) {
    SCOPED_TRACE(variant.str());
    Call first = weights_call("");
    ASSERT_TRUE(first.run(variant).ok());
    const std::vector<std::vector<double>> noise(50, std::vector<double>(1000, 1.0));
    Call second = weights_call(""), other_seed = weights_call(""), other_offset = weights_call("");
    other_seed.dropout_seed += 1;
    other_offset.dropout_offset += 1;
    ASSERT_TRUE(second.run(variant).ok());
    ASSERT_TRUE(other_seed.run(variant).ok());
    ASSERT_TRUE(other_offset.run(variant).ok());
    EXPECT_EQ(first.output_bits(), second.output_bits());
    EXPECT_NE(first.output_bits(), other_seed.output_bits());
    EXPECT_NE(first.output_bits(), other_offset.output_bits());
  }
}

// The share of kept weights is 1 - p within five standard deviations, in every head and sequence,
// and the patterns of heads and sequences differ.
TEST(Dropout, KeepsTheRightShare) {
  Call call = weights_call("lse");
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    const double sigma = std::sqrt(kSize * kSize * 0.25);
    int64_t differ_by_head = 0, differ_by_batch = 0;
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < 2; ++h) {
        int64_t kept = 0;
        for (int64_t i = 0; i < kSize; ++i) {
          for (int64_t j = 0; j < kSize; ++j) {
            const double weight = call.out.at({b, i, h, j});
            EXPECT_TRUE(weight == 0 || std::fabs(weight - 2.0 / kSize) < 1e-6);
            kept += weight != 0;
            differ_by_head += (weight != 0) != (call.out.at({b, i, 1 - h, j}) != 0);
            differ_by_batch += (weight != 0) != (call.out.at({1 - b, i, h, j}) != 0);
          }
        }
        EXPECT_NEAR(static_cast<double>(kept), kSize * kSize * 0.5, 5 * sigma);
      }
    }
    EXPECT_GT(differ_by_head, 4 * kSize * kSize / 3);
    EXPECT_GT(differ_by_batch, 4 * kSize * kSize / 3);
    for (const double lse : call.lse.values()) EXPECT_NEAR(lse, std::log(64.0), 1e-5);
  }
}

TEST(Dropout, SmallProbabilitiesDropLittle) {
  for (const char* p : {"1e-7", "0.01", "0.99"}) {
    Call call("fwd b1 sq64 sk64 hq4 hkv4 d64 fp32 dropout:" + std::string(p));
    call.q.fill(0);
    call.v.fill_by([](const int64_t* c) { return c[1] == c[3]; });
    const double rate = std::stod(p), count = 4 * kSize * kSize;
    for (const Variant& variant : variants(call.problem)) {
      ASSERT_TRUE(call.run(variant).ok());
      double dropped = 0;
      for (const double weight : call.out.values()) dropped += weight == 0;
      EXPECT_NEAR(dropped, count * rate, 1 + 5 * std::sqrt(count * rate * (1 - rate))) << p;
    }
  }
}

// dout the identity: dv[j][i] is the weight the backward pass gives to (i, j): the forward's
// out[i][j].
TEST(Dropout, BackwardUsesTheForwardsPattern) {
  Call forward = weights_call("");
  ASSERT_TRUE(forward.run_reference().ok());
  Call backward("bwd b2 sq64 sk64 hq2 hkv2 d64 fp32 dropout:0.5");
  backward.q.fill(0);
  backward.v.fill_by([](const int64_t* c) { return c[1] == c[3]; });
  backward.dout.fill_by([](const int64_t* c) { return c[1] == c[3]; });
  backward.run_forward_first();
  for (const Variant& variant : variants(backward.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(backward.run(variant).ok());
    for (int64_t i = 0; i < kSize; ++i) {
      for (int64_t j = 0; j < kSize; ++j) {
        ASSERT_NEAR(backward.dv.at({1, j, 1, i}), forward.out.at({1, i, 1, j}), 1e-6);
      }
    }
  }
}

// Positions are those within the sequence: a shorter batch element keeps its pattern.
TEST(Dropout, ThePatternDoesNotDependOnLengths) {
  Call longer("fwd b2 sq64 sk64 hq1 hkv1 d64 fp32 dropout:0.5");
  Call shorter("fwd b2 sq20 sk40 hq1 hkv1 d64 fp32 dropout:0.5");
  for (Call* call : {&longer, &shorter}) {
    call->q.fill(0);
    call->v.fill_by([](const int64_t* c) { return c[1] == c[3]; });
  }
  for (const Variant& variant : variants(longer.problem)) {
    ASSERT_TRUE(longer.run(variant).ok());
    ASSERT_TRUE(shorter.run(variant).ok());
    for (int64_t i = 0; i < 20; ++i) {
      for (int64_t j = 0; j < 40; ++j) {
        EXPECT_EQ(longer.out.at({1, i, 0, j}) != 0, shorter.out.at({1, i, 0, j}) != 0);
      }
    }
  }
}

TEST(Dropout, ProbabilitiesOutsideTheirRangeAreRefused) {
  for (const float p : {-0.1f, 1.0f, 1.5f, std::numeric_limits<float>::quiet_NaN()}) {
    Problem problem = Problem::parse("fwd sq4 sk4 d8 fp32").value();
    problem.dropout_p = p;
    EXPECT_EQ(problem.validate().argument(), "dropout_p") << p;
  }
}

}  // namespace
}  // namespace sirdar::test
