// Memory that no mask shows is as if never read: NaN and infinities there change no bit of any
// output and no gradient.
#include "edges/uniform.h"

namespace sirdar::test {
namespace {

// B007: the smallest case. Both rows see key 0 only; key 1 holds NaN, or its value does, or
// infinity.
TEST(NanInUnusedMemory, AMaskedKeyIsNotRead) {
  for (const double poison : {kNan, kInfinity, -kInfinity}) {
    for (const bool in_key : {true, false}) {
      Call call("fwd b1 sq2 sk2 hq1 hkv1 d4 fp32 mask:qk");
      for (Tensor* tensor : {&call.q, &call.k, &call.v}) {
        tensor->fill_by([](const int64_t* c) { return static_cast<double>(c[1] * 4 + c[3]); });
      }
      call.mask.fill_by([](const int64_t* c) { return c[3] == 0; });
      (in_key ? call.k : call.v).set({0, 1, 0, 0}, poison);
      for (const Variant& variant : variants(call.problem)) {
        SCOPED_TRACE(variant.str());
        ASSERT_TRUE(call.run(variant).ok());
        for (int64_t i = 0; i < 2; ++i) {
          for (int64_t c = 0; c < 4; ++c)
            EXPECT_EQ(call.out.at({0, i, 0, c}), static_cast<double>(c));
        }
      }
    }
  }
}

// Ways to hide keys 9..12 from every one of the rows 0..7.
class NanInUnusedMemoryByMask : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr int64_t kQueries = 8, kKeys = 13, kVisible = 9;

  static void hide(Call& call) {
    const auto shown = [](const int64_t* c) { return c[3] < kVisible; };
    if (call.mask.present()) call.mask.fill_by([&](const int64_t* c) { return shown(c); });
    if (call.bias.present())
      call.bias.fill_by([&](const int64_t* c) { return shown(c) ? 0.25 : -kInfinity; });
    if (call.seqused_k.present()) call.seqused_k.fill(kVisible);
    if (call.document_k.present()) {
      call.document_q.fill(1);
      call.document_k.fill_by([](const int64_t* c) { return c[1] < kVisible ? 1.0 : 2.0; });
    }
  }
  static std::string text(const char* op) {
    return std::string(op) + " b2 sq8 sk13 hq2 hkv1 d16 fp32 " + GetParam();
  }
  static void poison(Call& call, double value) {
    for (Tensor* tensor : {&call.k, &call.v}) {
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t j = kVisible; j < kKeys; ++j) {
          for (int64_t c = 0; c < 16; ++c) tensor->set({b, j, 0, c}, value);
        }
      }
    }
  }
};

TEST_P(NanInUnusedMemoryByMask, ForwardBitsStay) {
  for (const double value : {kNan, kInfinity, -kInfinity, 3e38}) {
    Call clean(text("fwd") + " lse max_logit"), dirty(text("fwd") + " lse max_logit");
    hide(clean), hide(dirty);
    poison(clean, 0), poison(dirty, value);
    for (const Variant& variant : variants(clean.problem)) {
      SCOPED_TRACE(variant.str() + " " + std::to_string(value));
      ASSERT_TRUE(clean.run(variant).ok());
      ASSERT_TRUE(dirty.run(variant).ok());
      EXPECT_EQ(clean.output_bits(), dirty.output_bits());
      EXPECT_TRUE(all_finite(dirty.out.values()));
    }
  }
}

TEST_P(NanInUnusedMemoryByMask, GradientsStayAndTheirsAreZero) {
  for (const double value : {kNan, kInfinity, -kInfinity, 3e38}) {
    Call clean(text("bwd") + " dlse"), dirty(text("bwd") + " dlse");
    hide(clean), hide(dirty);
    poison(clean, 0), poison(dirty, value);
    clean.run_forward_first(), dirty.run_forward_first();
    for (const Variant& variant : variants(clean.problem)) {
      SCOPED_TRACE(variant.str() + " " + std::to_string(value));
      ASSERT_TRUE(clean.run(variant).ok());
      ASSERT_TRUE(dirty.run(variant).ok());
      EXPECT_EQ(clean.output_bits(), dirty.output_bits());
      for (int64_t j = kVisible; j < kKeys; ++j) {
        EXPECT_EQ(dirty.dk.at({1, j, 0, 3}), 0);
        EXPECT_EQ(dirty.dv.at({1, j, 0, 3}), 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Masks, NanInUnusedMemoryByMask,
                         ::testing::Values("causal top-left", "window:,1 top-left",
                                           "chunk:9 top-left", "mask", "mask:k", "bias", "bias:k",
                                           "seqused_k", "document", "mask_mod:\"k < 9\""),
                         named_after_problem);

// Rows beyond seqused_q: garbage in q and dout there, zeros out.
TEST(NanInUnusedMemory, UnusedQueriesGiveEmptyRows) {
  Call call("fwd b2 sq9 sk20 hq2 hkv1 d16 fp32 seqused_q seqused_k causal lse max_logit",
            {{}, {}, {4, 0}, {20, 7}});
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    EXPECT_TRUE(all_finite(call.out.values()));
    for (int64_t i = 0; i < 9; ++i) {
      EXPECT_EQ(call.lse.at({0, 1, i}) == -kInfinity, i >= 4);
      EXPECT_EQ(call.max_logit.at({1, 1, i}), -kInfinity);
      EXPECT_EQ(call.out.at({1, i, 1, 15}), 0);
    }
  }
  Call backward("bwd b2 sq9 sk20 hq2 hkv1 d16 fp32 seqused_q seqused_k causal",
                {{}, {}, {4, 0}, {20, 7}});
  backward.run_forward_first();
  for (const Variant& variant : variants(backward.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(backward.run(variant).ok());
    for (const Tensor& tensor : backward.outputs()) EXPECT_TRUE(all_finite(tensor.values()));
    EXPECT_EQ(backward.dq.at({0, 4, 0, 0}), 0);
    EXPECT_EQ(backward.dk.at({1, 3, 0, 0}), 0);
    EXPECT_EQ(backward.dv.at({1, 19, 0, 0}), 0);
  }
}

// B137: padding behind the key lengths of a batch never leaks.
TEST(NanInUnusedMemory, KeyLengthsEqualAnExplicitMask) {
  const std::vector<int32_t> lengths{24, 32, 31, 28, 17, 1, 13, 0};
  Call shortened("fwd b8 sq32 sk32 hq4 hkv4 d16 bf16 seqused_k lse", {{}, {}, {}, lengths});
  Call masked("fwd b8 sq32 sk32 hq4 hkv4 d16 bf16 mask:bk lse");
  for (int64_t b = 0; b < 8; ++b) {
    const int64_t used = lengths[static_cast<size_t>(b)];
    for (int64_t j = 0; j < 32; ++j) {
      masked.mask.set({b, 0, 0, j}, j < used);
      copy_row(masked.k, b * 32 + j, shortened.k, b * 32 + j);
      copy_row(masked.v, b * 32 + j, shortened.v, b * 32 + j);
    }
  }
  for (const Variant& variant : few_variants(shortened.problem)) {
    SCOPED_TRACE(variant.str());
    expect_matches_float64(shortened, variant);
    ASSERT_TRUE(masked.run_reference().ok());
    EXPECT_TRUE(close(shortened.out.values(), masked.out.values(), DType::bf16));
    EXPECT_EQ(shortened.lse.at({7, 0, 0}), -kInfinity);
  }
}

}  // namespace
}  // namespace sirdar::test
