// A window wide enough to hide nothing is no window, bit for bit: with causal it is causal, without
// it is full attention (B027).
#include <gtest/gtest.h>

#include <limits>

#include "support/call.h"

namespace sirdar::test {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

void expect_same(const Problem& plain, const Problem& windowed) {
  for (const Variant& variant : variants(windowed)) {
    SCOPED_TRACE(windowed.str() + " " + variant.str());
    Call a(plain), b(windowed);
    if (plain.op == Op::backward) a.run_forward_first(), b.run_forward_first();
    ASSERT_TRUE(a.run(variant).ok());
    ASSERT_TRUE(b.run(variant).ok());
    EXPECT_EQ(a.output_bits(), b.output_bits());
  }
}

class WindowCoversAll : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {
 protected:
  Problem problem(Op op) const {
    Problem p;
    p.op = op;
    p.batch = 2;
    p.seqlen_q = GetParam().first;
    p.seqlen_k = GetParam().second;
    p.num_heads_q = 2;
    p.head_dim = 16;
    p.needs_lse = op == Op::forward;
    return p;
  }
};

TEST_P(WindowCoversAll, ZeroToTheRightIsCausal) {
  for (const Op op : {Op::forward, Op::backward}) {
    for (const Alignment alignment : {Alignment::bottom_right, Alignment::top_left}) {
      for (const std::optional<int64_t> left :
           {std::optional<int64_t>(), std::optional(kMost),
            std::optional(problem(op).seqlen_k + problem(op).seqlen_q)}) {
        Problem causal = problem(op), windowed = problem(op);
        causal.mask = Mask::causal(alignment);
        windowed.mask = Mask::window(left, 0);
        windowed.mask.alignment = alignment;
        expect_same(causal, windowed);
      }
    }
  }
}

TEST_P(WindowCoversAll, WideOnBothSidesIsFull) {
  for (const Op op : {Op::forward, Op::backward}) {
    const Problem full = problem(op);
    const int64_t wide = full.seqlen_q + full.seqlen_k;
    for (const auto& [left, right] : {std::pair(wide, wide), std::pair(kMost, kMost),
                                      std::pair(int64_t{1} << 31, (int64_t{1} << 31) - 1)}) {
      Problem windowed = full;
      windowed.mask = Mask::window(left, right);
      expect_same(full, windowed);
    }
  }
}

// B027: with more queries than keys the right bound that hides nothing is seqlen_q - 1, not
// seqlen_k.
TEST_P(WindowCoversAll, TheSmallestRightBoundThatHidesNothing) {
  const Problem full = problem(Op::forward);
  Problem windowed = full;
  windowed.mask = Mask::window(std::nullopt, full.seqlen_q - 1);
  expect_same(full, windowed);
}

INSTANTIATE_TEST_SUITE_P(Lengths, WindowCoversAll,
                         ::testing::Values(std::pair(33, 33), std::pair(64, 17), std::pair(17, 64),
                                           std::pair(1, 9)));

}  // namespace
}  // namespace sirdar::test
