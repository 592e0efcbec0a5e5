// Faults planted where thread blocks of the Hopper forward hand results to each other in global
// memory: shares of the last round, and parts of split keys.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "emulator/support/emulated_call.h"
#include "emulator/support/extent.h"
#include "emulator/support/planted.h"
#include "support/sanitized.h"

namespace sirdar::emulator_tests {
namespace {

// Every fault at the places of `files`, and those of `op` anywhere; everyday of all warpgroups at
// once.
void expect_noticed(const std::string& name, const std::string& problem, int blocks,
                    const std::set<std::string>& files, emulator::Op op, int least,
                    const std::function<void(test::Call&)>& edit = {}) {
  if (test::kIsSanitized) GTEST_SKIP() << "the forward's look at the emulator";
  EmulatedCall call(problem, edit);
  PlantedCase planted;
  planted.name = name;
  planted.source_folder = SIRDAR_SOURCE_DIR "/src/cuda/sm90/forward";
  planted.run = [&](const emulator::Launch& launch) { return call.run(launch, blocks); };
  planted.launch_of = [](uint64_t seed) {
    emulator::Launch launch;
    launch.seed = seed;
    return launch;
  };
  planted.name_of_barrier = [](int64_t offset) { return std::to_string(offset); };
  planted.is_wanted = [&](const emulator::Mutation& mutation) {
    const bool is_asked = mutation.op == op || files.contains(mutation.file);
    if (runs_everything()) return is_asked;
    return is_asked && mutation.warpgroup < 0 && mutation.op != emulator::Op::kBarrierSync;
  };
  const PlantedResult result =
      plant_all(planted, read_survivors(SIRDAR_SOURCE_DIR "/tests/emulator/survivors_forward.txt"),
                Selection::every);
  fmt::print("{}: {} faults, {} noticed by a calm run, {} by others\n", name, result.planted,
             result.caught_calm, result.caught_later);
  for (const std::string& survivor : result.unexplained)
    ADD_FAILURE() << "nobody noticed:\n" << survivor;
  for (const std::string& line : runs_everything() ? result.stale : std::vector<std::string>())
    ADD_FAILURE() << "survivors_forward.txt, " << line << ": does not survive any more; delete it.";
  EXPECT_GE(result.planted, least);
}

// Two items in shares of three key blocks, of results that leave through V and through Q.
TEST(PlantedShares, OfTheLastRound) {
  if (!runs_everything()) GTEST_SKIP() << "the other has all its places";
  expect_noticed("last_round", "fwd b1 sq140 sk290 h3 d256 bf16 sink lse | shares_last_round=true",
                 4, {"last_round.cuh"}, emulator::Op::kReleaseGlobal, 8);
}
TEST(PlantedShares, OfTheLastRoundBesideStagedResults) {
  expect_noticed("staged_last_round", "fwd b1 sq300 sk333 h3 d64 bf16 lse | shares_last_round=true",
                 4, {"last_round.cuh"}, emulator::Op::kReleaseGlobal, 8);
}

TEST(PlantedShares, OfSplitKeys) {
  expect_noticed("splits",
                 "fwd b1 sq9 sk600 hq8 hkv2 d64 bf16 causal sink lse max_logit | num_splits=7", 2,
                 {"combine.cuh", "parts.cuh"}, emulator::Op::kStoreGlobal, 4);
}

// Stages that lanes read go back behind a fence: a bias that TMA brings.
TEST(PlantedFences, OfABias) {
  expect_noticed("fences", "fwd b1 sq100 sk264 h2 d64 bf16 bias:hqk:bf16 causal lse", 1, {},
                 emulator::Op::kFenceProxyAsync, 1);
}
// And K and Q of scores that are made again, of results that leave through V.
TEST(PlantedFences, OfScoresThatAreMadeAgain) {
  expect_noticed("fences", "fwd b1 sq200 sk200 h1 d256 bf16 lse", 1, {},
                 emulator::Op::kFenceProxyAsync, 1, [](test::Call& args) {
                   for (int64_t row = 0; row < 200; row += 3)
                     for (int64_t column = 0; column < 256; ++column) {
                       args.q.set({0, row, 0, column}, 4);
                       args.k.set({0, row, 0, column}, row < 64 ? 4 : -4);
                     }
                 });
}

}  // namespace
}  // namespace sirdar::emulator_tests
