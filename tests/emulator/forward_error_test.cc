// Errors against float64 beside those of a running maximum: there the largest weight of a row is 1,
// which 16 bits hold exactly, and a row that one weight rules loses only the rounding of the
// result. The guarded reference follows such weights.
#include <gtest/gtest.h>

#include "emulator/support/forward_run.h"
#include "emulator/support/unit.h"

namespace sirdar::emulator_tests {
namespace {

using sm90::Element;
using sm90::ForwardConfig;
using sm90::MaskForm;
using sm90::Softmax;

template <ForwardConfig config>
double error_of(const ForwardProblem& problem) {
  ForwardRun run(config, problem);
  const emulator::Report report = run_forward<config>(run, run.launch_of(1));
  EXPECT_TRUE(report.ok()) << report.fault;
  return run.error();
}

constexpr ForwardConfig classic_of(ForwardConfig config) {
  config.softmax = Softmax::classic;
  return config;
}

// What Q and K are, and the most that the error may be of that of a running maximum. The last three
// have rows that one weight rules.
struct Kind {
  float input_scale;
  unsigned outliers;
  double most;
};
constexpr Kind kKinds[] = {{0.75f, 0, 1.05}, {0.75f, 1000, 1.08}, {2, 0, 1.05}, {4, 0, 1.02}};

template <ForwardConfig config>
void expect_no_larger_error(ForwardProblem problem) {
  for (const Kind& kind : kKinds) {
    problem.input_scale = kind.input_scale;
    problem.outliers = kind.outliers;
    const double running = error_of<classic_of(config)>(problem);
    EXPECT_LE(error_of<config>(problem), kind.most * running)
        << kind.input_scale << ", one of " << kind.outliers << " ten times as large";
  }
}

TEST(EmulatedForwardError, Full) {
  constexpr ForwardConfig config{.head_dim = 64, .head_dim_v = 64, .block_n = 64};
  expect_no_larger_error<config>({.num_heads = 1, .seqlen_q = 128, .seqlen_k = 1024});
  constexpr ForwardConfig fp16{
      .element = Element::fp16, .head_dim = 64, .head_dim_v = 64, .block_n = 64};
  expect_no_larger_error<fp16>({.num_heads = 1, .seqlen_q = 128, .seqlen_k = 1024});
}

TEST(EmulatedForwardError, Causal) {
  constexpr ForwardConfig config{
      .head_dim = 64, .head_dim_v = 64, .block_n = 64, .mask = MaskForm::upper};
  expect_no_larger_error<config>(
      {.num_heads = 1, .seqlen_q = 512, .seqlen_k = 512, .is_causal = true});
}

// Keys that no tile divides: an item begins with few.
TEST(EmulatedForwardError, FewKeysFirst) {
  constexpr ForwardConfig config{.head_dim = 64, .head_dim_v = 64, .block_n = 64};
  expect_no_larger_error<config>({.num_heads = 1, .seqlen_q = 128, .seqlen_k = 705});
}

TEST(FollowWeight, MovesAReferenceToWeightsAboveOne) {
  expect_clean(calm(32), [] {
    float reference = 3;
    EXPECT_EQ(sm90::follow_weight(8, 10, reference), 0.125f);
    EXPECT_EQ(reference, 6);
    EXPECT_EQ(sm90::follow_weight(0.75f, 100, reference), 1);
    EXPECT_EQ(reference, 6);
    // However many small weights there are, their sum stays below 2^12.
    EXPECT_EQ(sm90::follow_weight(0.75f, 0x1p16f, reference), 0.0625f);
    EXPECT_EQ(reference, 10);
  });
}

}  // namespace
}  // namespace sirdar::emulator_tests
