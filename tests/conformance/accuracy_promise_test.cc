// The accuracy promise of docs/semantics.md: errors at most twice those of a plain computation in
// the same precision. One draw of data compares two single samples of rounding luck, so the check
// calls only a factor of eight a fault; over many draws the luck cancels and the promise itself is
// tested, as the root mean square of the worst errors.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "check/run_check.h"
#include "plan/implementation.h"
#include "support/sanitized.h"

namespace sirdar::test {
namespace {

struct SquaredErrors {
  double own = 0, plain = 0;
};

constexpr int kDraws = 24;

class AccuracyPromise : public ::testing::TestWithParam<const char*> {};

TEST_P(AccuracyPromise, AtMostTwiceThePlainErrorOverManyDraws) {
  if (kIsSanitized) GTEST_SKIP() << "many draws of float64, minutes here; the values are the same";
  const Problem problem = Problem::parse(GetParam()).value();
  int judged = 0;
  for (const Implementation* one : implementations()) {
    PlanOptions options;
    options.implementation = one->name;
    if (!Plan::create(problem, options).ok()) continue;
    std::map<std::string, SquaredErrors> errors;
    for (uint64_t seed = 1; seed <= kDraws; ++seed) {
      const check::Report report = check::check(problem, options, seed);
      ASSERT_TRUE(report.ok) << report.text;
      for (const check::OutputReport& output : report.outputs) {
        errors[output.name].own += output.worst * output.worst;
        errors[output.name].plain += output.naive_worst * output.naive_worst;
      }
    }
    ASSERT_FALSE(errors.empty());
    for (const auto& [name, sums] : errors) {
      // Half an epsilon is what rounding an exact result once costs.
      const double own = std::sqrt(sums.own / kDraws), plain = std::sqrt(sums.plain / kDraws);
      EXPECT_LE(own, 2 * plain + 0.5) << one->name << ": " << name << " of " << problem.str();
    }
    ++judged;
  }
  EXPECT_GE(judged, 1);
}

INSTANTIATE_TEST_SUITE_P(Problems, AccuracyPromise,
                         ::testing::Values("fwd b2 sq17 sk33 hq2 hkv1 d7 fp32 causal lse",
                                           "fwd sq40 sk600 h2 d64 fp32 lse max_logit",
                                           "fwd sq33 sk65 hq4 hkv2 d128 fp32 softcap:5 alibi",
                                           "fwd s65 h2 d32 fp32 bias sink window:20, lse",
                                           "fwd s65 h2 d64 bf16 causal lse",
                                           "fwd s65 h2 d64 fp16 lse",
                                           "bwd s48 hq4 hkv2 d32 fp32 causal",
                                           "bwd s33 h2 d64 bf16 bias dbias sink dsink",
                                           "bwd s33 h2 d16 fp32 softcap:5 dlse"));

}  // namespace
}  // namespace sirdar::test
