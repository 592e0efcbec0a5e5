// Faults planted in the product's Hopper backward: each one is noticed, or survivors_backward.txt
// says why it does no harm.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "check/inputs.h"
#include "check/run_check.h"
#include "cuda/sm90/backward/arguments.h"
#include "emulator/machine.h"
#include "emulator/support/emulated_driver.h"
#include "emulator/support/emulated_steps.h"
#include "emulator/support/extent.h"
#include "emulator/support/planted.h"
#include "emulator/support/problem_list.h"
#include "support/sanitized.h"

namespace sirdar::emulator_tests {
namespace {

class PlantedCall {
 public:
  explicit PlantedCall(const std::string& text)
      : kernels_(listed_kernels(text, "cuda.sm90.backward").value()),
        inputs_(kernels_.problem, 1, check::Style::plain, 16) {
    const auto config = kernels_.config.as<sm90::BackwardConfig>();
    inputs_.accept();
    inputs_.set_workspace(sm90::workspace_of(kernels_.problem, config, {}).end);
    oracle_ = check::make_oracle(kernels_.problem, inputs_.args());
    const EmulatedDriver driver;
    steps_ = sm90::make_steps(kernels_.problem, config, {}, inputs_.args(), 16).value();
  }

  emulator::Launch launch_of(sm90::BackwardPass pass, uint64_t seed) const {
    const cuda::Step& step = steps_[static_cast<size_t>(pass)];
    const KernelSource& source = kernels_.sources[step.kernel];
    emulator::Launch launch;
    launch.grid.x = step.grid.x;
    launch.resident = static_cast<int>(std::min(step.grid.x, 8u));
    launch.cluster = static_cast<int>(step.cluster.x);
    launch.threads = source.threads;
    launch.shared_bytes = source.shared_bytes;
    launch.seed = seed;
    return launch;
  }

  // The one that survivors_backward.txt names; others by their place.
  std::string name_of_barrier(int64_t offset) const {
    const auto config = kernels_.config.as<sm90::BackwardConfig>();
    const int64_t first = emulator::kReservedShared + sm90::shared_map(config).barriers;
    const int64_t index = (offset - first) / 8;
    return index == 2 ? "kv_empty" : std::to_string(index);
  }

  // `main`: of the kernel that faults are planted in.
  emulator::Report run(const emulator::Launch& main) {
    inputs_.reset_outputs();
    fill_with_numbers(inputs_.args());
    launch(sm90::BackwardPass::prepare, launch_of(sm90::BackwardPass::prepare, 1));
    emulator::Report report = launch(sm90::BackwardPass::backward, main);
    if (!report.ok()) return report;
    launch(sm90::BackwardPass::convert, launch_of(sm90::BackwardPass::convert, 1));
    for (const std::string& fault : check::judge(oracle_).faults) report.fault = fault;
    return report;
  }

 private:
  emulator::Report launch(sm90::BackwardPass pass, const emulator::Launch& launch) {
    const cuda::Step& step = steps_[static_cast<size_t>(pass)];
    const auto kernel = emulated_kernel(kernels_.sources[step.kernel]);
    return emulator::launch(launch, [&] { kernel(step.params.data()); });
  }

  ListedKernels kernels_;
  check::Inputs inputs_;
  check::Oracle oracle_;
  std::vector<cuda::Step> steps_;
};

void expect_noticed(const std::string& name, const std::string& problem, Selection selection) {
  if (test::kIsSanitized) GTEST_SKIP() << "the forward's look at the emulator";
  PlantedCall call(problem);
  PlantedCase planted;
  planted.name = name;
  planted.source_folder = SIRDAR_SOURCE_DIR "/src/cuda/sm90/backward";
  planted.run = [&](const emulator::Launch& launch) { return call.run(launch); };
  planted.launch_of = [&](uint64_t seed) {
    return call.launch_of(sm90::BackwardPass::backward, seed);
  };
  planted.name_of_barrier = [&](int64_t offset) { return call.name_of_barrier(offset); };
  const PlantedResult result =
      plant_all(planted, read_survivors(SIRDAR_SOURCE_DIR "/tests/emulator/survivors_backward.txt"),
                selection);
  fmt::print("{}: {} faults, {} noticed by a calm run, {} by others\n", name, result.planted,
             result.caught_calm, result.caught_later);
  for (const std::string& survivor : result.unexplained)
    ADD_FAILURE() << "nobody noticed:\n" << survivor;
  for (const std::string& line : result.stale)
    ADD_FAILURE() << "survivors_backward.txt, " << line
                  << ": does not survive any more; delete it.";
  EXPECT_GT(result.planted, 30);
}

TEST(PlantedBackward, Cluster) {
  if (!runs_everything()) GTEST_SKIP() << "only where everything runs";
  expect_noticed("cluster",
                 "bwd b1 sq100 sk200 h1 d256 bf16 causal | cluster_size=2 num_stages_dout=1 "
                 "num_ds=1 num_slots=1",
                 Selection::one_of_a_kind);
}

TEST(PlantedBackward, Causal) {
  expect_noticed("causal", "bwd b1 s256 hq2 hkv1 d64 bf16 causal",
                 runs_everything() ? Selection::every : Selection::one_of_a_kind);
}

}  // namespace
}  // namespace sirdar::emulator_tests
