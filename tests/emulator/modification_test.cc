// The Hopper forward with scores and masks of the caller's, on the emulated machine.
#include <gtest/gtest.h>

#include "emulator/support/documents.h"
#include "emulator/support/forward_run.h"

namespace sirdar::emulator_tests {
namespace {

using sm90::ForwardConfig;
using sm90::MaskForm;
using sm90::Softmax;

template <ForwardConfig config>
void expect_right(ForwardProblem problem) {
  const Documents world(problem);
  const int shift = problem.seqlen_k - problem.seqlen_q;
  problem.modify = [&](double logit, int, int h, int q, int k) {
    return world.modify(logit, h, q, k, q + shift);
  };
  ForwardRun run(config, problem);
  const Modification modification = world.modification();
  EXPECT_EQ((run_cover<config>(run, modification)), "");
  if (problem.document == 256) {
    // Rows 128 to 255 are of the document of keys 0 to 255, and not of that of keys 256 to 767.
    const sm90::CoverWord word = run.params().cover.words[1];
    EXPECT_EQ(word.some & 0x0ff0u, 0u);
    EXPECT_EQ(word.all & word.some & 8u, 8u);
  }
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    const emulator::Report report = run_forward<config>(run, run.launch_of(seed), modification);
    EXPECT_EQ(report.fault, "") << "seed " << seed;
  }
}

TEST(EmulatedModification, ConditionalSoftmax) {
  constexpr ForwardConfig config{.head_dim = 64,
                                 .head_dim_v = 64,
                                 .softmax = Softmax::conditional,
                                 .has_logits = true,
                                 .has_score_mod = true,
                                 .has_mask_mod = true,
                                 .writes_lse = true};
  expect_right<config>({.seqlen_q = 200, .seqlen_k = 330});
}

TEST(EmulatedModification, GuardedSoftmaxUnderACausalMask) {
  constexpr ForwardConfig config{.head_dim = 64,
                                 .head_dim_v = 64,
                                 .mask = MaskForm::upper,
                                 .has_logits = true,
                                 .has_score_mod = true,
                                 .has_mask_mod = true,
                                 .writes_lse = true};
  expect_right<config>({.seqlen_q = 256, .seqlen_k = 300, .is_causal = true});
}

TEST(EmulatedModification, HiddenBlocksArePassedOver) {
  constexpr ForwardConfig config{.head_dim = 64,
                                 .head_dim_v = 64,
                                 .block_n = 64,
                                 .softmax = Softmax::conditional,
                                 .has_logits = true,
                                 .has_score_mod = true,
                                 .has_mask_mod = true,
                                 .writes_lse = true};
  expect_right<config>({.seqlen_q = 400, .seqlen_k = 900, .document = 256});
}

TEST(EmulatedModification, HiddenBlocksArePassedOverUnderAWindow) {
  constexpr ForwardConfig config{.head_dim = 64,
                                 .head_dim_v = 64,
                                 .block_n = 64,
                                 .mask = MaskForm::interval,
                                 .has_logits = true,
                                 .has_score_mod = true,
                                 .has_mask_mod = true,
                                 .writes_lse = true};
  expect_right<config>({.seqlen_q = 400, .seqlen_k = 900, .window_left = 700, .document = 256});
}

}  // namespace
}  // namespace sirdar::emulator_tests
