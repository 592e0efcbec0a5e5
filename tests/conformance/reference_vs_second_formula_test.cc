// The reference against an independent matrix formula on random problems, until every pair of
// features that can meet has met.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "check/compare.h"
#include "check/inputs.h"
#include "check/naive.h"
#include "reference/attention.h"
#include "support/second_formula.h"
#include "support/small_cases.h"

namespace sirdar {
namespace {

using testing::Case;
using testing::CaseMaker;
using testing::Matrices;

void expect_same(const std::vector<double>& actual, const std::vector<double>& expected,
                 const char* name) {
  ASSERT_EQ(actual.size(), expected.size()) << name;
  double largest = 1;
  for (const double x : expected) largest = std::max(largest, std::isfinite(x) ? std::abs(x) : 0);
  for (size_t n = 0; n < expected.size(); ++n) {
    if (std::isinf(expected[n])) {
      ASSERT_EQ(actual[n], expected[n]) << name << " " << n;
    } else {
      ASSERT_NEAR(actual[n], expected[n], 1e-11 * largest) << name << " " << n;
    }
  }
}

void compare_once(const Case& one, uint64_t seed) {
  const Problem& p = one.problem;
  SCOPED_TRACE(p.str() + " seed " + std::to_string(seed));
  ASSERT_TRUE(p.validate().ok()) << p.validate().message();
  check::Inputs inputs(p, seed);
  const Matrices expected = testing::second_formula(p, inputs.args(), one.score_mod, one.mask_mod);
  const reference::Forward forward = reference::forward(p, inputs.args());
  expect_same(forward.out, expected.out, "out");
  expect_same(forward.lse, expected.lse, "lse");
  expect_same(forward.max_logit, expected.max_logit, "max_logit");
  if (p.op == Op::forward) return;
  const reference::Gradients gradients = reference::backward(p, inputs.args(), forward);
  expect_same(gradients.dq, expected.dq, "dq");
  expect_same(gradients.dk, expected.dk, "dk");
  expect_same(gradients.dv, expected.dv, "dv");
  expect_same(gradients.dbias, expected.dbias, "dbias");
  expect_same(gradients.dsink, expected.dsink, "dsink");
  if (!expected.dtensor.empty()) expect_same(gradients.dtensors[0], expected.dtensor, "dtensor");
}

// Pairs that no valid problem can have.
bool can_meet(FeatureSet a, FeatureSet b) {
  namespace f = feature;
  const FeatureSet dtypes = f::dtype_fp32 | f::dtype_bf16 | f::dtype_fp16 | f::dtype_fp8;
  const FeatureSet forward_only = f::paged_kv | f::lse | f::max_logit | f::dtype_fp8;
  const FeatureSet backward_only = f::backward | f::dlse | f::dbias | f::dsink | f::dtensor;
  const auto both = [&](FeatureSet x, FeatureSet y) {
    return (x.contains(a) && y.contains(b)) || (x.contains(b) && y.contains(a));
  };
  if (a != b && dtypes.contains(a) && dtypes.contains(b)) return false;
  return !both(forward_only, backward_only) && !both(f::ragged_kv, f::paged_kv) &&
         !both(f::dtype_out, f::dtype_fp32);
}

TEST(ReferenceVsSecondFormula, EveryPairOfFeatures) {
  CaseMaker maker(20240607);
  std::set<uint64_t> met;
  for (uint64_t n = 0; n < 1500; ++n) {
    const Case one = maker.make();
    compare_once(one, n);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
    const uint64_t bits = one.problem.features().bits;
    for (uint64_t rest = bits; rest != 0; rest &= rest - 1) {
      for (uint64_t other = rest; other != 0; other &= other - 1) {
        met.insert((rest & -rest) | (other & -other));
      }
    }
  }
  for (int a = 0; a < 32; ++a) {
    for (int b = a; b < 32; ++b) {
      const FeatureSet x{uint64_t{1} << a}, y{uint64_t{1} << b};
      if (can_meet(x, y)) {
        EXPECT_TRUE(met.contains((x | y).bits)) << x.str() << " and " << y.str();
      }
    }
  }
}

// The limits of the check are neither too tight for a plain fp32 computation nor far above it.
TEST(CheckAllowance, APlainComputationStaysWithinItAndUsesAFairPartOfIt) {
  CaseMaker maker(99);
  double largest = 0;
  for (uint64_t n = 0; n < 400; ++n) {
    Problem problem = maker.make().problem;
    if (n % 3 == 0) problem.head_dim = 64;
    check::Inputs inputs(problem, n);
    const std::vector<check::Expected> all = check::expected_outputs(problem, inputs.args());
    check::run_naive(problem, inputs.args());
    for (const check::Expected& one : all) {
      const check::Deviation deviation = check::compare(one);
      EXPECT_TRUE(deviation.ok) << problem.str() << " seed " << n << " " << deviation.where << ": "
                                << deviation.actual << ", not " << deviation.expected;
      largest = std::max(largest, deviation.ratio);
    }
  }
  EXPECT_GT(largest, 0.25);
}

}  // namespace
}  // namespace sirdar
