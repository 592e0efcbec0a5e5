// S4: standard attention is right, and moves Theta(N d + N^2) elements in exactly the predicted
// number.
#include <gtest/gtest.h>

#include "ladder_fixture.h"
#include "reference/ladder/formulas.h"

namespace sirdar::ladder {
namespace {

TEST(LadderStandard, ForwardAndBackwardMatchFloat64) {
  for (const auto [n, d] : kSizes) {
    // The least that holds two rows; rows that stream; everything at once.
    for (const int64_t elements : {2 * d, 5 * d, 3 * n + d, 100000L}) {
      const RandomHead random(n, d);
      Machine machine(elements * 4);
      Tensors t = random.tensors(machine);
      const Slow weights = standard_forward(machine, random.head, t);
      standard_backward(machine, random.head, weights, t);
      const MatrixAttention exact = random.exact();
      EXPECT_LT(distance(t.out.values(), exact.out), kTolerance) << n << " " << d;
      EXPECT_LT(distance(t.dq.values(), exact.dq), kTolerance) << n << " " << d;
      EXPECT_LT(distance(t.dk.values(), exact.dk), kTolerance) << n << " " << d;
      EXPECT_LT(distance(t.dv.values(), exact.dv), kTolerance) << n << " " << d;
      EXPECT_LE(machine.counts().peak_fast_bytes, elements * 4);
    }
  }
}

TEST(LadderStandard, CountsOfASmallHeadByHand) {
  // N = 4, d = 2, M = 6: two rows are held beside one, so the streamed operand passes twice.
  const RandomHead random(4, 2);
  Machine machine(6 * 4);
  Tensors t = random.tensors(machine);
  const Slow weights = standard_forward(machine, random.head, t);
  // S: Q once (8), K twice (16), S written (16). P: a row of 4 fits in 6, read once (16), written
  // (16). O: P (16), V twice (16), O written (8).
  EXPECT_EQ(machine.counts().read_bytes, 4 * (8 + 16 + 16 + 16 + 16));
  EXPECT_EQ(machine.counts().written_bytes, 4 * (16 + 16 + 8));
  EXPECT_EQ(machine.counts().matmul_flops, 2 * (2 * 16 * 2));
  EXPECT_EQ(machine.counts().exps, 16);
  // scale, maximum, difference, sum and division of each score
  EXPECT_EQ(machine.counts().other_flops, 5 * 16);
  EXPECT_EQ(machine.counts().peak_extra_bytes, 4 * 32);  // S and P
}

TEST(LadderStandard, ARowThatDoesNotFitIsReadThreeTimes) {
  const RandomHead random(16, 2);
  Machine small(8 * 4), large(16 * 4);
  Tensors a = random.tensors(small), b = random.tensors(large);
  standard_forward(small, random.head, a);
  standard_forward(large, random.head, b);
  // Held rows: 3 and 7 of 16, so the streamed operand passes 6 and 3 times in both products.
  EXPECT_EQ(small.counts().read_bytes / 4, 32 + 2 * 6 * 32 + 3 * 256 + 256);
  EXPECT_EQ(large.counts().read_bytes / 4, 32 + 2 * 3 * 32 + 256 + 256);
}

TEST(LadderStandard, TrafficGrowsWithTheSquareOfTheLength) {
  const auto moved = [](int64_t n, int64_t d) {
    const RandomHead random(n, d);
    Machine machine(4096 * 4);
    Tensors t = random.tensors(machine);
    standard_forward(machine, random.head, t);
    return static_cast<double>(machine.counts().read_bytes + machine.counts().written_bytes) / 4;
  };
  for (const int64_t d : {4, 16}) {
    for (const int64_t n : {32, 64, 128, 256}) {
      const double bound = static_cast<double>(n * d + n * n);
      EXPECT_GE(moved(n, d) / bound, 2);
      EXPECT_LE(moved(n, d) / bound, 6);
    }
    EXPECT_NEAR(moved(512, d) / moved(256, d), 4, 0.5);
  }
}

TEST(LadderStandard, FormulasHoldWhereverTheRowEnds) {
  for (const auto [n, d] : kSizes) {
    for (const int64_t m : {2 * d, 3 * d + 1, n, 2 * n, 2 * n + 2 * d, 50000L}) {
      if (m < 2 * d) continue;
      const RandomHead random(n, d);
      Machine machine(m * 4);
      Tensors t = random.tensors(machine);
      const Slow weights = standard_forward(machine, random.head, t);
      const Counts forward = machine.counts();
      const Prediction p = predict_standard_forward(random.head, m);
      EXPECT_EQ(forward.read_bytes, 4 * p.read.value);
      EXPECT_EQ(forward.written_bytes, 4 * p.written.value);
      EXPECT_EQ(forward.other_flops, p.other_flops.value);
      EXPECT_EQ(forward.exps, p.exps.value);
      standard_backward(machine, random.head, weights, t);
      const Counts backward = machine.counts() - forward;
      const Prediction b = predict_standard_backward(random.head, m);
      EXPECT_EQ(backward.read_bytes, 4 * b.read.value);
      EXPECT_EQ(backward.written_bytes, 4 * b.written.value);
      EXPECT_EQ(backward.matmul_flops, b.matmul_flops.value);
      EXPECT_EQ(backward.other_flops, b.other_flops.value);
      EXPECT_EQ(backward.peak_extra_bytes, 4 * 2 * n * n);
    }
  }
}

}  // namespace
}  // namespace sirdar::ladder
