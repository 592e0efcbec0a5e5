// Faults planted in the product's Hopper forward: each one is noticed, or survivors_forward.txt
// says why it does no harm.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "emulator/support/documents.h"
#include "emulator/support/extent.h"
#include "emulator/support/forward_run.h"
#include "emulator/support/planted.h"
#include "support/sanitized.h"

namespace sirdar::emulator_tests {
namespace {

using sm90::ForwardConfig;
using sm90::MaskForm;

template <ForwardConfig config, class Modification = language::NoModification>
void expect_noticed(const std::string& name, const ForwardProblem& problem,
                    const Modification& modification = {}) {
  if (test::kIsSanitized && name != "causal") GTEST_SKIP() << "one case looks at the emulator";
  ForwardRun run(config, problem);
  if constexpr (config.has_mask_mod) {
    ASSERT_EQ((run_cover<config>(run, modification)), "");
  }
  PlantedCase planted;
  planted.name = name;
  planted.source_folder = SIRDAR_SOURCE_DIR "/src/cuda/sm90/forward";
  planted.run = [&](const emulator::Launch& launch) {
    return run_forward<config>(run, launch, modification);
  };
  planted.launch_of = [&](uint64_t seed) { return run.launch_of(seed); };
  planted.name_of_barrier = [&](int64_t offset) { return run.name_of_barrier(offset); };
  const PlantedResult result =
      plant_all(planted, read_survivors(SIRDAR_SOURCE_DIR "/tests/emulator/survivors_forward.txt"),
                runs_everything() ? Selection::every : Selection::one_of_a_kind);
  fmt::print("{}: {} faults, {} noticed by a calm run, {} by others\n", name, result.planted,
             result.caught_calm, result.caught_later);
  for (const std::string& survivor : result.unexplained)
    ADD_FAILURE() << "nobody noticed:\n" << survivor;
  for (const std::string& line : result.stale)
    ADD_FAILURE() << "survivors_forward.txt, " << line << ": does not survive any more; delete it.";
  EXPECT_GT(result.planted, runs_everything() ? 300 : 30);
}

// Sums that leave the guarded range, so that blocks are scored again.
TEST(PlantedForward, Full) {
  constexpr ForwardConfig config{
      .head_dim = 64, .head_dim_v = 64, .block_n = 64, .writes_lse = true};
  expect_noticed<config>(
      "full",
      {.num_heads = 6, .seqlen_q = 128, .seqlen_k = 250, .input_scale = 12.0f, .blocks = 1});
}

TEST(PlantedForward, Causal) {
  constexpr ForwardConfig config{.head_dim = 64,
                                 .head_dim_v = 64,
                                 .block_n = 64,
                                 .num_stages_k = 2,
                                 .num_stages_v = 3,
                                 .mask = MaskForm::upper,
                                 .trim = 2,
                                 .takes_turns = false};
  expect_noticed<config>(
      "causal", {.num_heads = 2, .seqlen_q = 244, .seqlen_k = 256, .is_causal = true, .blocks = 1});
}

TEST(PlantedForward, Lengths) {
  constexpr ForwardConfig config{.head_dim = 64,
                                 .head_dim_v = 64,
                                 .block_n = 64,
                                 .num_q_buffers = 1,
                                 .softmax = sm90::Softmax::classic,
                                 .has_lengths = true};
  expect_noticed<config>("lengths", {.batch = 2,
                                     .num_heads = 1,
                                     .seqlen_q = 200,
                                     .seqlen_k = 330,
                                     .seqused_k = {320, 217},
                                     .blocks = 1});
}

// Two blocks that load halves of K and V for each other.
TEST(PlantedForward, Cluster) {
  constexpr ForwardConfig config{
      .head_dim = 64, .head_dim_v = 64, .block_n = 64, .cluster_size = 2};
  expect_noticed<config>("cluster",
                         {.num_heads = 4, .seqlen_q = 256, .seqlen_k = 250, .blocks = 1});
}

// Blocks that a mask hides are passed over.
TEST(PlantedForward, Cover) {
  constexpr ForwardConfig config{.head_dim = 64,
                                 .head_dim_v = 64,
                                 .block_n = 64,
                                 .softmax = sm90::Softmax::conditional,
                                 .has_logits = true,
                                 .has_score_mod = true,
                                 .has_mask_mod = true};
  ForwardProblem problem{
      .num_heads = 2, .seqlen_q = 200, .seqlen_k = 600, .document = 130, .blocks = 1};
  const Documents documents(problem);
  problem.modify = [&](double logit, int, int h, int q, int k) {
    return documents.modify(logit, h, q, k, q + 400);
  };
  expect_noticed<config>("cover", problem, documents.modification());
}

}  // namespace
}  // namespace sirdar::emulator_tests
