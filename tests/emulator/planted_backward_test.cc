// Faults planted in the product's Hopper backward: each one is noticed, or survivors_backward.txt
// says why it does no harm.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "emulator/machine.h"
#include "emulator/support/backward_run.h"
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
  // Of a GPU with `num_sms` multiprocessors.
  PlantedCall(const std::string& text, int num_sms)
      : kernels_(listed_kernels(text, "cuda.sm90.backward").value()),
        inputs_(kernels_.problem, 1, check::Style::plain, 16) {
    const auto config = kernels_.config.as<sm90::BackwardConfig>();
    inputs_.accept();
    layout_ = sm90::workspace_of(kernels_.problem, config, {});
    inputs_.set_workspace(layout_.end);
    oracle_ = check::make_oracle(kernels_.problem, inputs_.args());
    const EmulatedDriver driver;
    steps_ = sm90::make_steps(kernels_.problem, config, {}, inputs_.args(), num_sms).value();
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

  // As BackwardShared lays them out, with the stage or slot behind the name.
  std::string name_of_barrier(int64_t offset) const {
    const auto config = kernels_.config.as<sm90::BackwardConfig>();
    const int64_t first = emulator::kReservedShared + sm90::shared_map(config).barriers;
    int64_t index = (offset - first) / 8;
    const int stages_q = config.num_stages_q, stages_dout = config.num_stages_dout,
              weights = sm90::is_wide(config) ? config.num_ds : 0,
              peers = config.cluster_size > 1 ? config.num_ds : 0;
    for (const auto& [name, count] : {std::pair{"k_full", 1},
                                      {"v_full", 1},
                                      {"kv_empty", 1},
                                      {"q_full", stages_q},
                                      {"q_empty", stages_q},
                                      {"dout_full", stages_dout},
                                      {"dout_empty", stages_dout},
                                      {"ds_full", config.num_ds},
                                      {"ds_empty", config.num_ds},
                                      {"weights_full", weights},
                                      {"weights_empty", weights},
                                      {"unit_full", sm90::num_unit_barriers(config)},
                                      {"slot_empty", config.num_slots},
                                      {"peer_ds_full", peers},
                                      {"item_full", sm90::kItemSlots},
                                      {"item_empty", sm90::kItemSlots},
                                      {"v_empty", 1}}) {
      if (index < count) return count > 1 ? fmt::format("{}{}", name, index) : name;
      index -= count;
    }
    return std::to_string((offset - first) / 8);
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
    // Inputs are finite: what is made again pair by pair is right, and was wrong.
    if (report.ok()) report.fault = lost_gradients(layout_, inputs_.args().workspace);
    return report;
  }

 private:
  emulator::Report launch(sm90::BackwardPass pass, const emulator::Launch& launch) {
    const cuda::Step& step = steps_[static_cast<size_t>(pass)];
    const auto kernel = emulated_kernel(kernels_.sources[step.kernel]);
    return emulator::launch(launch, [&] { kernel(step.params.data()); });
  }

  ListedKernels kernels_;
  sm90::BackwardWorkspace layout_{};
  check::Inputs inputs_;
  check::Oracle oracle_;
  std::vector<cuda::Step> steps_;
};

void expect_noticed(const std::string& name, PlantedCall call, Selection selection, int least = 31,
                    const std::function<bool(const emulator::Mutation&)>& is_wanted = {}) {
  PlantedCase planted;
  planted.name = name;
  planted.source_folder = SIRDAR_SOURCE_DIR "/src/cuda/sm90/backward";
  planted.run = [&](const emulator::Launch& launch) { return call.run(launch); };
  planted.launch_of = [&](uint64_t seed) {
    return call.launch_of(sm90::BackwardPass::backward, seed);
  };
  planted.name_of_barrier = [&](int64_t offset) { return call.name_of_barrier(offset); };
  planted.is_wanted = is_wanted;
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
  EXPECT_GE(result.planted, least);
}

class PlantedBackward : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::kIsSanitized) GTEST_SKIP() << "the forward's look at the emulator";
  }
};

TEST_F(PlantedBackward, Cluster) {
  if (!runs_everything()) GTEST_SKIP() << "only where everything runs";
  expect_noticed("cluster",
                 {"bwd b1 sq100 sk200 h1 d256 bf16 causal | cluster_size=2 num_stages_dout=1 "
                  "num_ds=1 num_slots=1",
                  16},
                 Selection::one_of_a_kind);
}

TEST_F(PlantedBackward, Causal) {
  if (runs_everything()) {
    // A thread block draws nine items, so that the four slots for them come round. Three have no
    // tiles.
    expect_noticed("causal", {"bwd b1 sq256 sk384 hq6 hkv3 d64 bf16 causal:top-left", 1},
                   Selection::every);
  } else {
    expect_noticed("causal", {"bwd b1 s256 hq2 hkv1 d64 bf16 causal", 16},
                   Selection::one_of_a_kind);
  }
}

// What lanes have read goes back behind a fence before TMA writes there: each fence is left out.
TEST_F(PlantedBackward, FencesOfWhatIsRead) {
  const auto is_fence = [](const emulator::Mutation& mutation) {
    return mutation.op == emulator::Op::kFenceProxyAsync && mutation.warpgroup < 0 &&
           mutation.file != "helpers.cuh";
  };
  struct Case {
    const char* text;
    int num_sms;
  };
  const Case cases[] = {
      // A bias; V whose gradients a sequence ends in; V that is looked through for its largest
      // entry, of keys without tiles; statistics that slopes take; items that come from the other
      // block of the cluster.
      {"bwd b1 sq150 sk200 hq2 hkv1 d128 bf16 bias:bhqk:bf16 causal", 1},
      {"bwd b3 sq40 sk100 ragged_q:90 h1 d256 bf16 seqused_k", 1},
      {"bwd b1 sq64 sk384 h1 d64 dv40 fp16 causal:top-left | is_persistent=true", 1},
      {"bwd b1 sq300 sk64 h1 d256 bf16 softcap:3 alibi", 1},
      {"bwd b1 sq64 sk64 h6 d256 bf16 causal | cluster_size=2 num_stages_dout=1 num_ds=1 "
       "num_slots=1 is_persistent=true mirrors_tail=true",
       2}};
  for (const Case& one : cases)
    expect_noticed("fences", {one.text, one.num_sms}, Selection::every, 3, is_fence);
}

}  // namespace
}  // namespace sirdar::emulator_tests
