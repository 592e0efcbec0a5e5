// Ragged batches: empty sequences, many sequences, and metadata that does not add up.
#include "edges/uniform.h"

namespace sirdar::test {
namespace {

// B014, B041: sequences without keys at the start, in the middle and at the end; rows of nothing
// have lse -inf, out 0, and no byte around the outputs changes (Call::run checks guards and gaps).
TEST(Ragged, SequencesWithoutKeysOrQueries) {
  const Lengths lengths{{4, 5, 0, 6, 3}, {0, 9, 7, 0, 0}, {}, {}};
  const Visible visible = [&](int64_t b, auto, auto, int64_t j) {
    return j < lengths.k[static_cast<size_t>(b)];
  };
  expect_visibility("fwd b5 sq6 sk9 hq4 hkv2 d8 fp32 ragged_q:18 ragged_k:16 lse", visible,
                    lengths);
  Call call("fwd b5 sq6 sk9 hq4 hkv2 d8 bf16 ragged_q:18 ragged_k:16 causal lse", lengths);
  expect_all_match_float64(call);
  EXPECT_EQ(call.lse.flat(call.statistic(3, 2, 5)), -kInfinity);
}

// B040: zero query lengths in the backward pass: keys nobody asked get gradients of exactly 0.
TEST(Ragged, KeysOfSequencesWithoutQueriesGetZeroGradients) {
  const Lengths lengths{{0, 12, 8, 0}, {25, 17, 8, 30}, {}, {}};
  for (const char* dtype : {"bf16", "fp32"}) {
    Call call(std::string("bwd b4 sq12 sk30 hq4 hkv1 d256 ragged_q:20 ragged_k:80 ") + dtype,
              lengths);
    call.run_forward_first();
    for (const Variant& variant : variants(call.problem)) {
      expect_matches_float64(call, variant);
      for (int64_t row = 0; row < 80; ++row) {
        const bool asked = row >= 25 && row < 50;
        EXPECT_EQ(call.dk.at({row, 0, 17}) != 0, asked) << row;
        EXPECT_EQ(call.dv.at({row, 0, 17}) != 0, asked) << row;
      }
    }
  }
}

// B044: 80,000 sequences of 16 tokens: more than any 16-bit counter of blocks.
TEST(Ragged, EightyThousandSequences) {
  const int64_t batch = 80000;
  const std::string total = std::to_string(batch * 16);
  Problem p = Problem::parse("fwd b80000 sq16 sk16 hq1 hkv1 d4 fp32 lse ragged_q:" + total +
                             " ragged_k:" + total)
                  .value();
  Call call(p);
  make_uniform(call);
  for (const Variant& variant : few_variants(p)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    for (const int64_t row :
         {int64_t{0}, int64_t{65535} * 16, int64_t{65536} * 16 + 3, batch * 16 - 1}) {
      EXPECT_FLOAT_EQ(static_cast<float>(call.out.at({row, 0, 3})), 8.5f);
      EXPECT_NEAR(call.lse.at({0, row}), std::log(16.0), 1e-5);
    }
  }
}

// B047: thousands of short sequences, forward and backward.
TEST(Ragged, ThousandsOfSequencesBackward) {
  Call call("bwd b3000 sq3 sk3 hq2 hkv2 d8 fp32 ragged_q:9000 ragged_k:9000 causal");
  call.run_forward_first();
  for (const Variant& variant : variants(call.problem)) expect_matches_float64(call, variant);
}

// B045: rows that no sequence covers would keep garbage, so a total that is not reached is an
// error.
TEST(Ragged, EveryRowMustBelongToASequence) {
  Call call("fwd b2 sq10 sk10 hq1 hkv1 d4 fp32 ragged_q:20 ragged_k:20");
  call.cu_seqlens_q.fill({0, 10, 18});
  const Status status = call.run_reference();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.argument(), "cu_seqlens_q");
  EXPECT_NE(status.message().find("18"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("20"), std::string::npos) << status.message();
}

struct BadMetadata {
  const char* name;
  std::vector<double> cu;
};

// B046: offsets that start late, decrease, end early or late, or make a sequence longer than
// allowed. Nothing may be written.
TEST(Ragged, MetadataThatDoesNotAddUpIsAnError) {
  for (const BadMetadata& bad :
       {BadMetadata{"decreases", {0, 5, 3, 8}}, BadMetadata{"starts late", {1, 3, 5, 8}},
        BadMetadata{"starts early", {-1, 3, 5, 8}}, BadMetadata{"too long", {0, 6, 7, 8}},
        BadMetadata{"ends early", {0, 3, 5, 7}}, BadMetadata{"ends late", {0, 3, 5, 9}},
        BadMetadata{"negative end", {0, 3, 5, -8}}}) {
    for (const bool queries : {true, false}) {
      Call call("fwd b3 sq5 sk5 hq1 hkv1 d4 fp32 ragged_q:8 ragged_k:8 lse",
                {{5, 3, 0}, {5, 3, 0}, {}, {}});
      (queries ? call.cu_seqlens_q : call.cu_seqlens_k).fill(bad.cu);
      for (const Variant& variant : few_variants(call.problem)) {
        SCOPED_TRACE(std::string(bad.name) + " " + variant.str());
        const Status status = call.run(variant);
        EXPECT_EQ(status.code(), StatusCode::invalid_argument);
        EXPECT_EQ(status.argument(), queries ? "cu_seqlens_q" : "cu_seqlens_k") << status.message();
        EXPECT_FALSE(status.rule().empty());
        for (const double value : call.out.values()) EXPECT_TRUE(std::isnan(value));
        for (const double value : call.lse.values()) EXPECT_TRUE(std::isnan(value));
      }
    }
  }
}

// B046: int64 offsets are named as what they are.
TEST(Ragged, OffsetsOfAnotherDtypeAreAnError) {
  Call call("fwd b2 sq5 sk5 hq1 hkv1 d4 fp32 ragged_q:8 ragged_k:8");
  call.cu_seqlens_k = Tensor(DType::int64, {3}).fill({0, 5, 8});
  const Status status = call.run_reference();
  EXPECT_EQ(status.argument(), "cu_seqlens_k");
  EXPECT_NE(status.message().find("int64"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("int32"), std::string::npos) << status.message();
}

TEST(Ragged, UsedLengthsOutsideTheirSequenceAreAnError) {
  for (const double used : {-1.0, 6.0, 2e9, -2147483648.0}) {
    Call call("fwd b2 sq5 sk5 hq1 hkv1 d4 fp32 seqused_q seqused_k");
    call.seqused_k.set({1}, used);
    Status status = call.run_reference();
    EXPECT_EQ(status.argument(), "seqused_k") << status.message();
    call.seqused_k.set({1}, 2);
    call.seqused_q.set({0}, used);
    status = call.run_reference();
    EXPECT_EQ(status.argument(), "seqused_q") << status.message();
  }
}

TEST(Ragged, PagesThatDoNotExistAreAnError) {
  for (const double page : {-1.0, 1e6, 2147483647.0}) {
    Call call("fwd b2 sq2 sk20 hq1 hkv1 d4 fp32 paged8", {{}, {}, {}, {20, 17}});
    call.page_table.set({1, 2}, page);
    const Status status = call.run_reference();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.argument(), "page_table") << status.message();
  }
  // Entries that no key in use needs are not looked at.
  Call unused("fwd b2 sq2 sk20 hq1 hkv1 d4 fp32 paged8", {{}, {}, {}, {20, 16}});
  unused.page_table.set({1, 2}, -7);
  for (const Variant& variant : variants(unused.problem)) EXPECT_TRUE(unused.run(variant).ok());
}

// B070: the metadata speaks of 20 keys, the tensor holds 17.
TEST(Ragged, FewerKeysThanTheProblemSays) {
  for (const int64_t held : {1, 2, 10, 17}) {
    Call call("fwd b1 sq10 sk20 hq4 hkv4 d8 fp32 ragged_q:10 ragged_k:20");
    call.k = Tensor(DType::fp32, {held, 4, 8}).fill(0);
    const Status status = call.run_reference();
    EXPECT_EQ(status.argument(), "k");
    EXPECT_NE(status.message().find(std::to_string(held)), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("20"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace sirdar::test
