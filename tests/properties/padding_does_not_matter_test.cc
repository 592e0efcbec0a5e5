// Rows past the used length of a sequence, however many, do not change a bit of the others.
#include <gtest/gtest.h>

#include "support/call.h"

namespace sirdar::test {
namespace {

// All rows in use of a tensor [batch, seqlen, heads, columns].
std::vector<double> used_rows(const Call& call, const Tensor& tensor, bool is_query) {
  std::vector<double> result;
  if (!tensor.present()) return result;
  const std::vector<int32_t>& used = is_query ? call.lengths().used_q : call.lengths().used_k;
  const int64_t columns = tensor.shape()[2] * tensor.shape()[3];
  for (int64_t b = 0; b < call.problem.batch; ++b) {
    for (int64_t n = 0; n < used[static_cast<size_t>(b)]; ++n) {
      const int64_t row = is_query ? call.query_row(b, n) : call.key_row(b, n);
      for (int64_t c = 0; c < columns; ++c) result.push_back(tensor.flat(row * columns + c));
    }
  }
  return result;
}

std::vector<std::vector<double>> used_outputs(const Call& call) {
  return {used_rows(call, call.out, true), used_rows(call, call.dq, true),
          used_rows(call, call.dk, false), used_rows(call, call.dv, false)};
}

class PaddingDoesNotMatter : public ::testing::TestWithParam<const char*> {};

TEST_P(PaddingDoesNotMatter, BitForBit) {
  const Lengths lengths{{}, {}, {33, 130}, {140, 65}};
  const std::string text = std::string(GetParam()) + " b2 hq2 hkv1 seqused_q seqused_k";
  Call tight(text + " sq130 sk140", lengths);
  if (tight.problem.op == Op::backward) tight.run_forward_first();
  for (const char* size : {" sq131 sk256", " sq600 sk141"}) {
    Call padded(text + size, lengths);
    if (padded.problem.op == Op::backward) padded.run_forward_first();
    for (Variant variant : few_variants(tight.problem)) {
      for (const int threads : {1, 3}) {
        variant.num_threads = threads;
        SCOPED_TRACE(variant.str() + size);
        ASSERT_TRUE(tight.run(variant).ok());
        ASSERT_TRUE(padded.run(variant).ok());
        EXPECT_EQ(used_outputs(tight), used_outputs(padded));
        if (tight.problem.op == Op::backward) {
          EXPECT_EQ(padded.dk.flat(padded.dk.size() - 1), 0);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Problems, PaddingDoesNotMatter,
                         ::testing::Values("fwd d16 fp32 causal", "fwd d16 bf16 window:50,9",
                                           "fwd d8 fp16 dropout:0.3", "bwd d16 fp32 causal",
                                           "bwd d16 bf16 window:50,9", "bwd d8 fp16 dropout:0.3"),
                         named_after_problem);

}  // namespace
}  // namespace sirdar::test
