// Narrow inputs: computed from their rounded values, with an error that does not grow with length.
#include "edges/uniform.h"

namespace sirdar::test {
namespace {

// B157: e4m3 inputs at growing lengths, and heads split over calls: the same head, the same bits.
TEST(Dtypes, Fp8ErrorIsFlatInTheNumberOfKeys) {
  for (const char* keys : {"sk64", "sk1024", "sk4096"}) {
    Call call(std::string("fwd b1 sq4 hq2 hkv2 d32 fp8_e4m3 lse ") + keys);
    expect_all_match_float64(call);
  }
  Call whole("fwd b1 sq4 sk256 hq4 hkv4 d32 fp8_e4m3"),
      shard("fwd b1 sq4 sk256 hq1 hkv1 d32 fp8_e4m3");
  for (auto [to, from] : {std::pair(&shard.q, &whole.q), std::pair(&shard.k, &whole.k),
                          std::pair(&shard.v, &whole.v)}) {
    to->fill_by([source = from](const int64_t* c) { return source->at({c[0], c[1], 3, c[3]}); });
  }
  for (const Variant& variant : variants(whole.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(whole.run(variant).ok());
    ASSERT_TRUE(shard.run(variant).ok());
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t c = 0; c < 32; ++c)
        EXPECT_EQ(whole.out.at({0, i, 3, c}), shard.out.at({0, i, 0, c}));
    }
  }
}

// B158: fp8 has a forward pass only, and says so.
TEST(Dtypes, Fp8BackwardIsRefused) {
  const Result<Problem> p = Problem::parse("bwd b1 sq4 sk4 hq1 hkv1 d8 fp8_e4m3");
  const Status status = p.ok() ? p.value().validate() : p.status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("backward"), std::string::npos) << status.message();
}

TEST(Dtypes, OutputsHaveTheirDefaultsAndFp32) {
  EXPECT_EQ(Problem::parse("fwd sq4 sk4 d8 fp8_e4m3").value().output_dtype(), DType::bf16);
  EXPECT_EQ(Problem::parse("fwd sq4 sk4 d8 fp16").value().output_dtype(), DType::fp16);
  for (const char* dtype : {"bf16", "fp16", "fp8_e4m3"}) {
    Call narrow(std::string("fwd b2 sq9 sk17 hq2 hkv1 d16 ") + dtype);
    Call wide(std::string("fwd b2 sq9 sk17 hq2 hkv1 d16 out:fp32 ") + dtype);
    for (const Variant& variant : variants(wide.problem)) {
      SCOPED_TRACE(variant.str() + dtype);
      expect_matches_float64(wide, variant);
    }
    ASSERT_TRUE(wide.run_reference().ok());
    for (const Variant& variant : variants(narrow.problem)) {
      SCOPED_TRACE(variant.str() + dtype);
      expect_matches_float64(narrow, variant);
      EXPECT_TRUE(close(narrow.out.values(), wide.out.values(), narrow.problem.output_dtype()));
    }
  }
}

// Results outside the range of fp16 become infinite, not garbage.
TEST(Dtypes, SubnormalAndLargeValuesOfFp16) {
  Call call("fwd b1 sq3 sk3 hq1 hkv1 d4 fp16 scale:1");
  call.q.fill(0);
  call.v.fill_by([](const int64_t* c) { return c[3] < 2 ? 6e-8 : 65504; });
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(call.out.at({0, i, 0, 0}), 0x1p-24);
      EXPECT_EQ(call.out.at({0, i, 0, 3}), 65504);
    }
  }
}

}  // namespace
}  // namespace sirdar::test
