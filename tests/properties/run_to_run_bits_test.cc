// The same call gives the same bits: again, at other addresses, with another plan, and with other
// garbage in the outputs and the workspace. Forward and backward (B123).
#include <gtest/gtest.h>

#include "support/call.h"

namespace sirdar::test {
namespace {

class RunToRunBits : public ::testing::TestWithParam<const char*> {};

TEST_P(RunToRunBits, NeverDiffer) {
  Call first(GetParam());
  for (const Variant& variant : variants(first.problem)) {
    SCOPED_TRACE(variant.str());
    if (first.problem.op == Op::backward) first.run_forward_first();
    ASSERT_TRUE(first.run(variant).ok());
    const std::vector<uint8_t> expected = first.output_bits();
    std::vector<Call> kept;  // keeps memory in use, so that every turn lives at new addresses
    for (int turn = 0; turn < 5; ++turn) {
      kept.emplace_back(GetParam());
      Call& again = kept.back();
      if (again.problem.op == Op::backward) again.run_forward_first();
      ASSERT_TRUE(again.run(variant).ok());
      EXPECT_EQ(again.output_bits(), expected);
      ASSERT_TRUE(first.run(variant).ok());
      EXPECT_EQ(first.output_bits(), expected);
    }
  }
}

// B120: dropout included, whatever is allocated in between.
INSTANTIATE_TEST_SUITE_P(
    Problems, RunToRunBits,
    ::testing::Values(
        "fwd b2 sq65 sk130 hq4 hkv2 d24 fp32 causal lse max_logit",
        "fwd b1 sq1 sk257 hq8 hkv1 d64 fp32 lse", "fwd b2 sq33 sk65 hq2 hkv2 d16 bf16 causal lse",
        "fwd b2 sq17 sk33 hq2 hkv2 d16 fp32 dropout:0.5 lse",
        "bwd b2 sq17 sk33 hq4 hkv2 d16 fp32 causal",
        "bwd b2 sq17 sk33 hq2 hkv2 d16 fp32 dropout:0.5 bias:qk dbias",
        "bwd b3 sq20 sk20 hq2 hkv2 d16 bf16 ragged_q:45 ragged_k:45 causal sink dsink"),
    named_after_problem);

}  // namespace
}  // namespace sirdar::test
