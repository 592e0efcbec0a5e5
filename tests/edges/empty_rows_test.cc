// Rows that see no key: output 0, lse -inf, gradients 0, and no trace in any other row.
#include "edges/uniform.h"

namespace sirdar::test {
namespace {

// B002: a boolean mask hides; the same numbers as a bias are added and hide nothing.
TEST(EmptyRows, BooleanMasksHideAndFloatsAreAdded) {
  const auto corner = [](const int64_t* c) { return c[2] < 4 && c[3] < 4 ? 1.0 : 0.0; };
  Call boolean("fwd b1 sq8 sk8 hq1 hkv1 d8 fp32 mask:qk lse");
  make_uniform(boolean);
  boolean.mask.fill_by(corner);
  for (const Variant& variant : variants(boolean.problem)) {
    expect_uniform(boolean, variant,
                   [](auto, auto, int64_t i, int64_t j) { return i < 4 && j < 4; });
  }
  Call added("fwd b1 sq8 sk8 hq1 hkv1 d8 fp32 bias:qk lse");
  make_uniform(added);
  added.bias.fill_by(corner);
  const double e = std::exp(1.0);
  for (const Variant& variant : variants(added.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(added.run(variant).ok());
    const double weighted = (e * (1 + 2 + 3 + 4) + 5 + 6 + 7 + 8) / (4 * e + 4);
    EXPECT_NEAR(added.out.at({0, 0, 0, 0}), weighted, 1e-5);
    EXPECT_NEAR(added.out.at({0, 7, 0, 0}), 4.5, 1e-5);
    EXPECT_NEAR(added.lse.at({0, 0, 0}), std::log(4 * e + 4), 1e-5);
  }
}

// B006: an empty row anywhere leaves every gradient finite, and the other sequence's untouched.
TEST(EmptyRows, TheOtherSequencesGradientsAreItsOwn) {
  const auto band = [](const int64_t* c, int64_t kept) {
    return std::abs(c[2] - c[3]) <= 1 && c[3] < kept ? 0.0 : -kInfinity;
  };
  Call both("bwd b2 sq4 sk4 hq1 hkv1 d1 fp32 bias");
  both.bias.fill_by([&](const int64_t* c) { return band(c, c[0] == 0 ? 4 : 2); });
  Call first("bwd b1 sq4 sk4 hq1 hkv1 d1 fp32 bias");
  first.bias.fill_by([&](const int64_t* c) { return band(c, 4); });
  both.run_forward_first();
  first.run_forward_first();
  for (const Variant& variant : variants(both.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(both.run(variant).ok());
    ASSERT_TRUE(first.run(variant).ok());
    for (const Tensor& tensor : both.outputs()) EXPECT_TRUE(all_finite(tensor.values()));
    EXPECT_EQ(both.dq.at({1, 3, 0, 0}), 0);  // row 3 of the padded sequence sees nothing
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(both.dq.at({0, i, 0, 0}), first.dq.at({0, i, 0, 0}));
      EXPECT_EQ(both.dk.at({0, i, 0, 0}), first.dk.at({0, i, 0, 0}));
      EXPECT_EQ(both.dv.at({0, i, 0, 0}), first.dv.at({0, i, 0, 0}));
    }
    EXPECT_EQ(both.dk.at({1, 2, 0, 0}), 0);
    EXPECT_EQ(both.dv.at({1, 3, 0, 0}), 0);
  }
}

// B099: diagonal blocks with a gap of empty rows equal attention on each block alone.
TEST(EmptyRows, DiagonalBlocksAreIndependent) {
  const auto block = [](int64_t i) {
    return i < 32 ? 0 : i < 64 ? 1 : i < 96 ? 2 : i < 136 ? -1 : 3;
  };
  for (const char* dtype : {"fp32", "bf16"}) {
    Call whole(std::string("fwd b1 sq150 sk150 hq2 hkv2 d80 mask:qk lse ") + dtype);
    whole.mask.fill_by(
        [&](const int64_t* c) { return block(c[2]) >= 0 && block(c[2]) == block(c[3]); });
    Call last(std::string("fwd b1 sq14 sk14 hq2 hkv2 d80 lse ") + dtype);
    for (int64_t i = 0; i < 14; ++i) {
      copy_row(last.q, i, whole.q, 136 + i);
      copy_row(last.k, i, whole.k, 136 + i);
      copy_row(last.v, i, whole.v, 136 + i);
    }
    for (const Variant& variant : few_variants(whole.problem)) {
      SCOPED_TRACE(variant.str() + dtype);
      ASSERT_TRUE(whole.run(variant).ok());
      ASSERT_TRUE(last.run(variant).ok());
      for (int64_t i = 0; i < 14; ++i) {
        for (int64_t c = 0; c < 80; ++c) {
          EXPECT_NEAR(whole.out.at({0, 136 + i, 1, c}), last.out.at({0, i, 1, c}), 2e-2);
        }
      }
      for (int64_t i = 96; i < 136; ++i) {
        EXPECT_EQ(whole.out.at({0, i, 0, 3}), 0);
        EXPECT_EQ(whole.lse.at({0, 1, i}), -kInfinity);
      }
    }
    expect_all_match_float64(whole);
  }
}

// Every way to hide all keys of a row gives the same empty row.
class EmptyRowsByEveryMask : public ::testing::TestWithParam<const char*> {
 protected:
  // Hides everything from the rows below 3 where the words of the problem do not do so already.
  static void hide(Call& call) {
    if (call.mask.present()) call.mask.fill_by([](const int64_t* c) { return c[2] >= 3; });
    if (call.bias.present())
      call.bias.fill_by([](const int64_t* c) { return c[2] >= 3 ? 0.5 : -kInfinity; });
    if (call.document_q.present()) {
      call.document_q.fill_by([](const int64_t* c) { return c[1] >= 3 ? 1.0 : 2.0; });
      call.document_k.fill(1);
    }
  }
};

TEST_P(EmptyRowsByEveryMask, ForwardGivesZeroAndMinusInfinity) {
  Call call("fwd b2 sq9 sk6 hq2 hkv1 d8 fp32 lse max_logit " + std::string(GetParam()));
  hide(call);
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    for (int64_t i = 0; i < 9; ++i) {
      for (int64_t h = 0; h < 2; ++h) {
        EXPECT_EQ(call.lse.at({1, h, i}) == -kInfinity, i < 3) << i;
        EXPECT_EQ(call.max_logit.at({1, h, i}) == -kInfinity, i < 3) << i;
        for (int64_t c = 0; c < 8; ++c) EXPECT_EQ(call.out.at({1, i, h, c}) == 0, i < 3) << i;
      }
    }
    expect_matches_float64(call, variant);
  }
}

TEST_P(EmptyRowsByEveryMask, BackwardGivesZeroWhateverComesIn) {
  Call call("bwd b2 sq9 sk6 hq2 hkv1 d8 fp32 dlse " + std::string(GetParam()));
  hide(call);
  for (int64_t h = 0; h < 2; ++h) call.dlse.set({1, h, 0}, 1e30);
  call.run_forward_first();
  for (const Variant& variant : variants(call.problem)) {
    expect_matches_float64(call, variant);
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t c = 0; c < 8; ++c) EXPECT_EQ(call.dq.at({1, i, 0, c}), 0);
    }
    for (const Tensor& tensor : call.outputs()) EXPECT_TRUE(all_finite(tensor.values()));
  }
}

INSTANTIATE_TEST_SUITE_P(Masks, EmptyRowsByEveryMask,
                         ::testing::Values("causal", "window:9,0", "mask", "mask:q", "bias",
                                           "document", "mask_mod:\"q >= 3\"",
                                           "score_mod:\"q >= 3 ? score : -1/0.0\""),
                         named_after_problem);

// With a sink an empty row is not empty: its lse is the sink and the sink receives dlse.
TEST(EmptyRows, ASinkTakesAllTheWeight) {
  Call call("fwd b2 sq5 sk0 hq3 hkv1 d8 fp32 sink lse max_logit");
  call.sink.fill({-2.0, 0.0, 50.0});
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    EXPECT_TRUE(all_equal(call.out.values(), 0));
    EXPECT_TRUE(all_equal(call.max_logit.values(), -kInfinity));
    for (int64_t h = 0; h < 3; ++h) EXPECT_NEAR(call.lse.at({1, h, 4}), call.sink.at({h}), 1e-6);
  }
  Call backward("bwd b2 sq5 sk0 hq3 hkv1 d8 fp32 sink dsink dlse");
  backward.run_forward_first();
  for (const Variant& variant : variants(backward.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(backward.run(variant).ok());
    EXPECT_TRUE(all_equal(backward.dq.values(), 0));
    for (int64_t h = 0; h < 3; ++h) {
      double sum = 0;
      for (int64_t n = 0; n < 10; ++n) sum += backward.dlse.at({n / 5, h, n % 5});
      EXPECT_NEAR(backward.dsink.at({h}), sum, 1e-4);
    }
  }
}

// B160: no queries, nothing is written and that is success; no keys, every row is empty.
TEST(EmptyRows, SizesOfZero) {
  for (const char* text :
       {"fwd b2 sq0 sk8 hq2 hkv2 d16 fp32 lse", "fwd b0 sq4 sk8 hq2 hkv2 d16 fp32 lse"}) {
    Call call(text);
    for (const Variant& variant : variants(call.problem))
      EXPECT_TRUE(call.run(variant).ok()) << text;
  }
  Call none("fwd b2 sq4 sk0 hq2 hkv2 d16 fp32 lse max_logit");
  for (const Variant& variant : variants(none.problem)) {
    ASSERT_TRUE(none.run(variant).ok());
    EXPECT_TRUE(all_equal(none.out.values(), 0));
    EXPECT_TRUE(all_equal(none.lse.values(), -kInfinity));
  }
  Call keys("bwd b2 sq0 sk4 hq2 hkv2 d16 fp32");
  for (const Variant& variant : variants(keys.problem)) {
    ASSERT_TRUE(keys.run(variant).ok());
    EXPECT_TRUE(all_equal(keys.dk.values(), 0));
    EXPECT_TRUE(all_equal(keys.dv.values(), 0));
  }
  const Result<Problem> no_columns = Problem::parse("fwd b2 sq4 sk4 hq2 hkv2 d0 fp32");
  EXPECT_FALSE(no_columns.ok() && no_columns.value().validate().ok());
}

}  // namespace
}  // namespace sirdar::test
