// S1-S3: where the naive softmax overflows, what the safe and online ones cost, and the laws of
// merge.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ladder_fixture.h"
#include "reference/ladder/climb.h"

namespace sirdar::ladder {
namespace {

using SoftmaxFunction = void (*)(Machine&, const Slow&, Slow&, int64_t, int64_t);
constexpr SoftmaxFunction kAll[] = {naive_softmax, safe_softmax, online_softmax};
constexpr SoftmaxFunction kSafe[] = {safe_softmax, online_softmax};

std::vector<float> softmax_of(SoftmaxFunction softmax, std::vector<float> row,
                              Precision precision = Precision::fp32) {
  Machine machine(0, precision);
  const Slow scores = machine.input(row);
  Slow weights = machine.output(static_cast<int64_t>(row.size()));
  softmax(machine, scores, weights, 0, static_cast<int64_t>(row.size()));
  return weights.values();
}

TEST(LadderSoftmax, NaiveOverflowsAtTwelveInHalfAndAtEightyNineInSingle) {
  EXPECT_EQ(first_overflow(Precision::fp16), 12);
  EXPECT_EQ(first_overflow(Precision::fp32), 89);
  // e^11 = 59874 still fits under 65504.
  EXPECT_EQ(softmax_of(naive_softmax, {11}, Precision::fp16)[0], 1);
  EXPECT_TRUE(std::isnan(softmax_of(naive_softmax, {12}, Precision::fp16)[0]));
  EXPECT_EQ(softmax_of(naive_softmax, {88}, Precision::fp32)[0], 1);
  EXPECT_TRUE(std::isnan(softmax_of(naive_softmax, {89}, Precision::fp32)[0]));
  // Two elevens: each exponential fits, their sum does not, and every weight becomes 0.
  EXPECT_EQ(softmax_of(naive_softmax, {11, 11}, Precision::fp16), (std::vector<float>{0, 0}));
}

TEST(LadderSoftmax, SafeAndOnlineDoNotOverflow) {
  for (const SoftmaxFunction softmax : kSafe) {
    for (const Precision precision : {Precision::fp16, Precision::fp32}) {
      EXPECT_EQ(softmax_of(softmax, {12}, precision)[0], 1);
      EXPECT_EQ(softmax_of(softmax, {11, 11}, precision), (std::vector<float>{0.5F, 0.5F}));
      EXPECT_EQ(softmax_of(softmax, {60000, 60000, -60000}, precision),
                (std::vector<float>{0.5F, 0.5F, 0}));
    }
    EXPECT_EQ(softmax_of(softmax, {3e38F, 3e38F, -3e38F}), (std::vector<float>{0.5F, 0.5F, 0}));
  }
}

TEST(LadderSoftmax, AllThreeAgreeWithTheFormula) {
  for (const int64_t size : {1, 2, 3, 100, 257}) {
    std::mt19937_64 generator(static_cast<uint64_t>(size));
    std::normal_distribution<float> normal(0, 2);
    std::vector<float> row(static_cast<size_t>(size));
    for (float& x : row) x = normal(generator);
    double sum = 0;
    for (const float x : row) sum += std::exp(double{x});
    std::vector<double> expected;
    for (const float x : row) expected.push_back(std::exp(double{x}) / sum);
    for (const SoftmaxFunction softmax : kAll) {
      EXPECT_LT(distance(softmax_of(softmax, row), expected), 1e-6) << size;
    }
  }
}

TEST(LadderSoftmax, PassesOverTheRowAreCounted) {
  const std::vector<float> row(10, 1.5F);
  const auto counts = [&](SoftmaxFunction softmax) {
    Machine machine(0);
    const Slow scores = machine.input(row);
    Slow weights = machine.output(10);
    softmax(machine, scores, weights, 0, 10);
    EXPECT_EQ(weights.elements_written(), 10);
    EXPECT_EQ(machine.counts().peak_extra_bytes, 0);
    EXPECT_EQ(machine.counts().peak_fast_bytes, 0);
    return machine.counts();
  };
  EXPECT_EQ(counts(naive_softmax).read_bytes, 2 * 10 * 4);
  EXPECT_EQ(counts(safe_softmax).read_bytes, 3 * 10 * 4);
  EXPECT_EQ(counts(online_softmax).read_bytes, 2 * 10 * 4);
  EXPECT_EQ(counts(safe_softmax).exps, 20);
  EXPECT_EQ(counts(online_softmax).exps, 30);  // the saved pass is paid in exponentials
}

TEST(LadderSoftmax, MergeHasAnIdentityBitForBit) {
  Machine machine(0);
  for (const RowState state :
       {RowState{1.25F, 3.7F}, RowState{-1e30F, 1}, RowState{3e38F, 1e30F}}) {
    for (const RowState merged :
         {merge(machine, state, empty_row()), merge(machine, empty_row(), state)}) {
      EXPECT_EQ(merged.row_max, state.row_max);
      EXPECT_EQ(merged.row_sum, state.row_sum);
    }
  }
  const RowState empty = merge(machine, empty_row(), empty_row());
  EXPECT_EQ(empty.row_max, -INFINITY);
  EXPECT_EQ(empty.row_sum, 0);
}

TEST(LadderSoftmax, MergeIsAssociative) {
  Machine machine(0);
  std::mt19937_64 generator(3);
  std::uniform_real_distribution<float> score(-30, 30), sum(1, 100);
  for (int trial = 0; trial < 1000; ++trial) {
    const RowState a{score(generator), sum(generator)}, b{score(generator), sum(generator)},
        c{score(generator), sum(generator)};
    const RowState left = merge(machine, merge(machine, a, b), c);
    const RowState right = merge(machine, a, merge(machine, b, c));
    EXPECT_EQ(left.row_max, right.row_max);
    // A handful of roundings, and exp of a rounded difference of up to 60.
    EXPECT_NEAR(left.row_sum / right.row_sum, 1, 1e-5);
    const double exact = a.row_sum * std::exp(double{a.row_max} - left.row_max) +
                         b.row_sum * std::exp(double{b.row_max} - left.row_max) +
                         c.row_sum * std::exp(double{c.row_max} - left.row_max);
    EXPECT_NEAR(left.row_sum / exact, 1, 1e-5);
  }
}

}  // namespace
}  // namespace sirdar::ladder
