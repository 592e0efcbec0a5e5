// The Hopper backward on the emulated machine, its three kernels as the library launches them, held
// against float64 on hostile arguments: with gaps of NaN between rows, and a workspace of NaN.
#include <gtest/gtest.h>

#include "check/inputs.h"
#include "check/run_check.h"
#include "core/elements.h"
#include "cuda/sm90/backward/arguments.h"
#include "emulator/support/emulated_driver.h"
#include "emulator/support/emulated_steps.h"
#include "emulator/support/extent.h"
#include "emulator/support/problem_list.h"
#include "support/call.h"

namespace sirdar::emulator_tests {
namespace {

constexpr const char* kList = SIRDAR_SOURCE_DIR "/tests/emulator/backward.txt";

// What is wrong, or "". The blocks of the main kernel wait for each other: all run at one time.
std::string launch_all(const ListedKernels& kernels, const std::vector<cuda::Step>& steps,
                       uint64_t seed) {
  for (const cuda::Step& step : steps) {
    const KernelSource& source = kernels.sources[step.kernel];
    const auto run = emulated_kernel(source);
    emulator::Launch launch;
    launch.grid.x = step.grid.x;
    launch.cluster = static_cast<int>(step.cluster.x);
    launch.threads = source.threads;
    launch.shared_bytes = source.shared_bytes;
    launch.seed = seed;
    const bool is_main = step.kernel == static_cast<size_t>(sm90::BackwardPass::backward);
    if (is_main) {
      launch.misalignment = static_cast<unsigned>(16 * (seed % 3));
      launch.resident = static_cast<int>(step.grid.x / step.cluster.x);
    }
    const emulator::Report report = emulator::launch(launch, [&] { run(step.params.data()); });
    if (!report.ok()) return source.entry + ": " + report.fault;
    EXPECT_EQ(report.counters.stmatrix_conflicts, 0u);
  }
  return "";
}

// `num_sms`: blocks that run at one time, each of which takes several items where it is small.
void expect_right(const std::string& text, uint64_t seed, int num_sms) {
  SCOPED_TRACE(text + ", seed " + std::to_string(seed));
  const ListedKernels kernels = listed_kernels(text, "cuda.sm90.backward").value();
  const auto config = kernels.config.as<sm90::BackwardConfig>();
  const expression::DeviceModification modification = expression::modification_of(kernels.problem);
  check::Inputs inputs(kernels.problem, seed, check::Style::hostile, 16);
  inputs.accept();
  inputs.set_workspace(sm90::workspace_of(kernels.problem, config, modification).end);
  inputs.reset_outputs();
  const check::Oracle oracle = check::make_oracle(kernels.problem, inputs.args());
  const EmulatedDriver driver;
  const auto steps =
      sm90::make_steps(kernels.problem, config, modification, inputs.args(), num_sms);
  ASSERT_TRUE(steps.ok()) << steps.status().message();
  ASSERT_EQ(launch_all(kernels, steps.value(), seed), "");
  EXPECT_EQ(inputs.damage(), "");
  for (const std::string& fault : check::judge(oracle).faults) ADD_FAILURE() << fault;
}

std::vector<ListedProblem> selected() {
  std::vector<ListedProblem> chosen;
  for (const ListedProblem& one : listed_problems(kList))
    if (runs_everything() || one.is_everyday) chosen.push_back(one);
  return chosen;
}

class EmulatedBackward : public ::testing::TestWithParam<ListedProblem> {};

TEST_P(EmulatedBackward, MatchesFloat64) {
  const uint64_t seeds = runs_everything() ? 6 : 1;
  const uint64_t first = std::hash<std::string>()(GetParam().text) % 1000;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    // All items at one time; more items than run at one time; more key blocks of a head than that.
    constexpr int kNumSms[] = {16, 4, 2};
    expect_right(GetParam().text, seed, kNumSms[seed % 3]);
  }
}

INSTANTIATE_TEST_SUITE_P(Listed, EmulatedBackward, ::testing::ValuesIn(selected()),
                         [](const auto& row) {
                           return test::named_after(row.param.text, row.index);
                         });

// Every gradient of a run on data that do not depend on `seed`, which draws the schedule.
std::vector<double> gradients_of(const std::string& text, uint64_t seed) {
  const ListedKernels kernels = listed_kernels(text, "cuda.sm90.backward").value();
  const auto config = kernels.config.as<sm90::BackwardConfig>();
  const expression::DeviceModification modification = expression::modification_of(kernels.problem);
  check::Inputs inputs(kernels.problem, 1, check::Style::plain, 16);
  inputs.accept();
  inputs.set_workspace(sm90::workspace_of(kernels.problem, config, modification).end);
  inputs.reset_outputs();
  const EmulatedDriver driver;
  const auto steps =
      sm90::make_steps(kernels.problem, config, modification, inputs.args(), 16).value();
  EXPECT_EQ(launch_all(kernels, steps, seed), "");
  std::vector<double> values;
  for (const TensorView* view : {&inputs.args().dq, &inputs.args().dk, &inputs.args().dv})
    for_each_element(
        *view, [&](int64_t offset, int64_t) { values.push_back(load_element(*view, offset)); });
  return values;
}

// Three key blocks add to most rows of dQ: in another order the bits would be others.
TEST(EmulatedBackwardBits, AreThoseOfAnySchedule) {
  for (const char* text : {"bwd b1 sq256 sk384 h1 d64 bf16", "bwd b1 s384 h1 d64 bf16 causal"}) {
    const std::vector<double> first = gradients_of(text, 1);
    for (uint64_t seed = 2; seed <= 4; ++seed) EXPECT_EQ(gradients_of(text, seed), first) << text;
  }
}

}  // namespace
}  // namespace sirdar::emulator_tests
