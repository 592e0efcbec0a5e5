// The product's Hopper forward on the emulated machine: several seeds, no fault, the right answer.
#include <gtest/gtest.h>

#include "emulator/support/forward_run.h"

namespace sirdar::emulator_tests {
namespace {

using sm90::ForwardConfig;
using sm90::MaskForm;

template <ForwardConfig config, class Modification = language::NoModification>
void expect_right(const ForwardProblem& problem, const Modification& modification = {}) {
  ForwardRun run(config, problem);
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    const emulator::Report report = run_forward<config>(run, run.launch_of(seed), modification);
    EXPECT_EQ(report.fault, "") << "seed " << seed;
  }
}

TEST(EmulatedForward, Full) {
  constexpr ForwardConfig config{.head_dim = 64, .head_dim_v = 64, .writes_lse = true};
  expect_right<config>({});
}

TEST(EmulatedForward, Causal) {
  constexpr ForwardConfig config{
      .head_dim = 64, .head_dim_v = 64, .mask = MaskForm::upper, .writes_lse = true};
  expect_right<config>({.is_causal = true});
}

}  // namespace
}  // namespace sirdar::emulator_tests
