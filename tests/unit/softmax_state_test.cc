// The softmax state as a monoid: any order and grouping of the scores gives the same lse, at any
// level.
#include "shared/softmax_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace sirdar {
namespace {

constexpr double kInf = kInfinity<double>;

template <class T>
SoftmaxState<T> of(std::initializer_list<T> scores) {
  SoftmaxState<T> state;
  for (T score : scores) state = update(state, score);
  return state;
}

TEST(SoftmaxState, EmptyIsTheIdentity) {
  const SoftmaxState<double> empty;
  EXPECT_TRUE(empty.empty());
  EXPECT_EQ(empty.lse(), -kInf);
  EXPECT_EQ(empty.inverse_sum(), 0);
  for (double score : {-1e300, -3.5, 0.0, 7.25, 1e300}) {
    const auto state = of({score, score - 1});
    for (const auto& same : {merge(state, empty), merge(empty, state)}) {
      EXPECT_EQ(same.max, state.max);
      EXPECT_EQ(same.sum, state.sum);
    }
  }
  EXPECT_TRUE(merge(empty, empty).empty());
  EXPECT_EQ(merge(empty, empty).lse(), -kInf);
}

TEST(SoftmaxState, KnownValues) {
  EXPECT_EQ(of({5.0}).lse(), 5.0);  // one score: its own value, exactly
  EXPECT_NEAR(of({0.0, 0.0}).lse(), std::log(2.0), 1e-16);
  EXPECT_NEAR(of({std::log(1.0), std::log(2.0), std::log(5.0)}).lse(), std::log(8.0), 1e-15);
}

TEST(SoftmaxState, MinusInfinityScoreHasNoWeight) {
  const auto state = of({-kInf, 2.0, -kInf});
  EXPECT_EQ(state.max, 2.0);
  EXPECT_EQ(state.sum, 1.0);
  EXPECT_TRUE(of({-kInf, -kInf}).empty());
}

TEST(SoftmaxState, NaNAndPlusInfinityPoisonWhereverTheyStand) {
  for (double bad : {kInf, std::nan("")}) {
    EXPECT_TRUE(std::isnan(of({bad, 1.0, 2.0}).lse())) << bad;
    EXPECT_TRUE(std::isnan(of({1.0, bad, 2.0}).lse())) << bad;
    EXPECT_TRUE(std::isnan(of({1.0, -kInf, bad}).lse())) << bad;
    EXPECT_TRUE(std::isnan(merge(of({1.0}), of({bad})).lse())) << bad;
    EXPECT_TRUE(std::isnan(merge(of({bad}), SoftmaxState<double>{}).lse())) << bad;
  }
  EXPECT_TRUE(std::isnan(of({kInf, kInf}).lse()));
}

TEST(SoftmaxState, HugeScoresKeepTheirDifferences) {
  for (float level : {1e30f, -1e30f, 3e38f, -3e38f}) {
    EXPECT_EQ(of({level, level}).sum, 2.0f);
    EXPECT_EQ(of({level, -level}).sum, 1.0f);  // the difference overflows fp32 and weighs nothing
    EXPECT_EQ(of({level}).lse(), level);
  }
}

TEST(SoftmaxState, AssociativeAndCommutativeUpToRounding) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal(0, 20);
  for (int trial = 0; trial < 1000; ++trial) {
    SoftmaxState<double> parts[3], all;
    std::vector<double> scores;
    for (auto& part : parts) {
      for (unsigned n = random() % 4; n > 0; --n) {
        scores.push_back(normal(random));
        part = update(part, scores.back());
        all = update(all, scores.back());
      }
    }
    const auto left = merge(merge(parts[0], parts[1]), parts[2]);
    const auto right = merge(parts[0], merge(parts[1], parts[2]));
    const auto turned = merge(parts[2], merge(parts[1], parts[0]));
    if (all.empty()) {
      EXPECT_TRUE(left.empty() && right.empty() && turned.empty());
      continue;
    }
    for (const auto& state : {left, right, turned}) {
      EXPECT_EQ(state.max, all.max);
      EXPECT_NEAR(state.lse(), all.lse(), 1e-13 * (1 + std::abs(all.lse())));
    }
  }
}

TEST(SoftmaxState, MergeWeights) {
  const auto far = merge_weights(-300.0, 300.0);
  EXPECT_EQ(far.lse, 300.0);
  EXPECT_EQ(far.b, 1.0);
  EXPECT_LT(far.a, 1e-200);
  const auto even = merge_weights(2.0, 2.0);
  EXPECT_EQ(even.a, 0.5);
  EXPECT_NEAR(even.lse, 2 + std::log(2.0), 1e-15);
  const auto none = merge_weights(-kInf, -kInf);
  EXPECT_EQ(none.a, 0.0);
  EXPECT_EQ(none.b, 0.0);
  EXPECT_EQ(none.lse, -kInf);
}

}  // namespace
}  // namespace sirdar
