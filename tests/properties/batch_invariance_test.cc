// A sequence's result does not depend, in a single bit, on what else is in the batch, on its place
// there, or on how many sequences there are (B125).
#include <gtest/gtest.h>

#include <limits>

#include "support/call.h"

namespace sirdar::test {
namespace {

// Rows of sequence b of a dense tensor.
std::vector<double> rows_of(const Tensor& tensor, int64_t b) {
  const int64_t count = tensor.size() / tensor.shape()[0];
  std::vector<double> result;
  for (int64_t n = 0; n < count; ++n) result.push_back(tensor.flat(b * count + n));
  return result;
}

void copy_sequence(const Tensor& to, int64_t to_b, const Tensor& from, int64_t from_b) {
  const int64_t count = from.size() / from.shape()[0];
  Tensor target = to;
  for (int64_t n = 0; n < count; ++n)
    target.set_flat(to_b * count + n, from.flat(from_b * count + n));
}

// `alone` holds one sequence; the other call gets it at place `b` and must give the same numbers.
void place(const Call& alone, const Call& among, int64_t b) {
  copy_sequence(among.q, b, alone.q, 0);
  copy_sequence(among.k, b, alone.k, 0);
  copy_sequence(among.v, b, alone.v, 0);
  if (alone.problem.op == Op::backward) copy_sequence(among.dout, b, alone.dout, 0);
}

class BatchInvariance : public ::testing::TestWithParam<const char*> {};

TEST_P(BatchInvariance, AnySizeAnyPlace) {
  Call alone(std::string(GetParam()) + " b1");
  for (const int64_t batch : {2, 3, 8, 33, 64}) {
    Call among(std::string(GetParam()) + " b" + std::to_string(batch));
    place(alone, among, batch / 2);
    if (alone.problem.op == Op::backward) alone.run_forward_first(), among.run_forward_first();
    for (const Variant& variant : few_variants(alone.problem)) {
      SCOPED_TRACE("batch " + std::to_string(batch) + " " + variant.str());
      ASSERT_TRUE(alone.run(variant).ok());
      ASSERT_TRUE(among.run(variant).ok());
      const std::vector<Tensor> one = alone.outputs(), many = among.outputs();
      for (size_t t = 0; t < one.size(); ++t) {
        if (!one[t].present() || one[t].shape()[0] != 1) continue;
        EXPECT_EQ(rows_of(one[t], 0), rows_of(many[t], batch / 2));
      }
    }
  }
}

TEST_P(BatchInvariance, NeighboursMayHoldAnything) {
  Call alone(std::string(GetParam()) + " b1"), among(std::string(GetParam()) + " b3");
  place(alone, among, 1);
  for (const int64_t b : {0, 2}) {
    const int64_t count = among.k.size() / 3;
    for (int64_t n = 0; n < count; ++n) {
      among.k.set_flat(b * count + n, b == 0 ? std::numeric_limits<double>::quiet_NaN() : 1e30);
    }
  }
  if (alone.problem.op == Op::backward) alone.run_forward_first(), among.run_forward_first();
  for (const Variant& variant : few_variants(alone.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(alone.run(variant).ok());
    ASSERT_TRUE(among.run(variant).ok());
    const std::vector<Tensor> one = alone.outputs(), many = among.outputs();
    for (size_t t = 0; t < one.size(); ++t) {
      if (one[t].present() && one[t].shape()[0] == 1) {
        EXPECT_EQ(rows_of(one[t], 0), rows_of(many[t], 1));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Problems, BatchInvariance,
                         ::testing::Values("fwd sq1 sk40 hq4 hkv1 d16 fp32 lse",
                                           "fwd sq9 sk33 hq2 hkv2 d16 fp32 causal lse",
                                           "fwd sq33 sk17 hq2 hkv1 d24 fp32 window:8, sink lse",
                                           "fwd sq9 sk33 hq2 hkv2 d16 bf16 causal",
                                           "fwd sq9 sk33 hq2 hkv2 d16 fp16 causal",
                                           "bwd sq9 sk17 hq2 hkv1 d16 fp32 causal",
                                           "bwd sq9 sk17 hq2 hkv1 d16 bf16",
                                           "bwd sq20 sk140 hq2 hkv1 d8 fp16 window:30,"),
                         named_after_problem);

// B125: row 0 sees one key whatever follows it, so adding queries must not move it.
TEST(BatchInvarianceOfRows, RowZeroDoesNotDependOnTheNumberOfQueries) {
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    const std::string rest = std::string(" sk40 hq2 hkv1 d16 top-left causal ") + dtype;
    Call first("fwd b1 sq1" + rest);
    for (int64_t seqlen_q = 2; seqlen_q <= 16; ++seqlen_q) {
      Call more("fwd b1 sq" + std::to_string(seqlen_q) + rest);
      copy_row(more.q, 0, first.q, 0);
      for (const Variant& variant : few_variants(first.problem)) {
        SCOPED_TRACE(std::string(dtype) + " " + std::to_string(seqlen_q) + " " + variant.str());
        ASSERT_TRUE(first.run(variant).ok());
        ASSERT_TRUE(more.run(variant).ok());
        for (int64_t h = 0; h < 2; ++h) {
          for (int64_t c = 0; c < 16; ++c) {
            EXPECT_EQ(first.out.at({0, 0, h, c}), more.out.at({0, 0, h, c}));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sirdar::test
