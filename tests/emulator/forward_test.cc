// The product's Hopper forward on the emulated machine: several seeds, no fault, the right answer.
#include <gtest/gtest.h>

#include "emulator/support/forward_run.h"

namespace sirdar::emulator_tests {
namespace {

using sm90::Element;
using sm90::ForwardConfig;
using sm90::MaskForm;
using sm90::Softmax;

template <ForwardConfig config, class Modification = language::NoModification>
void expect_right(const ForwardProblem& problem, const Modification& modification = {}) {
  ForwardRun run(config, problem);
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    emulator::Launch launch = run.launch_of(seed);
    launch.misalignment = static_cast<unsigned>(16 * (seed - 1));  // of the dynamic shared memory
    const emulator::Report report = run_forward<config>(run, launch, modification);
    EXPECT_EQ(report.fault, "") << "seed " << seed;
    // A stored O leaves without bank conflicts; stored from registers it is not there.
    EXPECT_EQ(report.counters.stmatrix_conflicts, 0u);
  }
}

TEST(EmulatedForward, Full) {
  constexpr ForwardConfig config{.head_dim = 64, .head_dim_v = 64, .writes_lse = true};
  expect_right<config>({.num_heads = 4, .group_size = 2, .seqlen_q = 200, .seqlen_k = 333});
}

TEST(EmulatedForward, CausalTrimmed) {
  constexpr ForwardConfig config{.head_dim = 64,
                                 .head_dim_v = 64,
                                 .block_n = 64,
                                 .num_stages_v = 3,
                                 .mask = MaskForm::upper,
                                 .trim = 2,
                                 .writes_lse = true};
  expect_right<config>({.batch = 2, .num_heads = 1, .is_causal = true, .blocks = 3});
}

TEST(EmulatedForward, WindowOfThreeWarpgroups) {
  constexpr ForwardConfig config{.head_dim = 64,
                                 .head_dim_v = 64,
                                 .num_consumers = 3,
                                 .block_n = 96,
                                 .mask = MaskForm::interval,
                                 .softmax = Softmax::conditional,
                                 .writes_lse = true};
  expect_right<config>({.num_heads = 1, .seqlen_q = 250, .seqlen_k = 300, .window_left = 70});
}

TEST(EmulatedForward, GuardedSumsThatOverflow) {
  constexpr ForwardConfig bf16{.head_dim = 64, .head_dim_v = 64, .block_n = 64, .writes_lse = true};
  expect_right<bf16>({.num_heads = 1, .seqlen_q = 128, .seqlen_k = 400, .input_scale = 12.0f});
  constexpr ForwardConfig fp16{.element = Element::fp16,
                               .head_dim = 64,
                               .head_dim_v = 64,
                               .block_n = 64,
                               .writes_lse = true};
  expect_right<fp16>({.num_heads = 1, .seqlen_q = 128, .seqlen_k = 400, .input_scale = 6.0f});
}

TEST(EmulatedForward, WideHeadsFromOneQueryBuffer) {
  constexpr ForwardConfig config{.head_dim = 136,
                                 .head_dim_v = 72,
                                 .block_n = 80,
                                 .num_stages_k = 2,
                                 .num_q_buffers = 1,
                                 .softmax = Softmax::classic,
                                 .has_lengths = true};
  expect_right<config>(
      {.batch = 2, .num_heads = 1, .seqlen_q = 130, .seqlen_k = 170, .seqused_k = {170, 101}});
}

// Outputs that leave through the last stages of V while the next items begin: of items of one key
// block, of two and of more, which warpgroups trim or not.
TEST(EmulatedForward, OutputsThroughStagesOfV) {
  constexpr ForwardConfig full{
      .head_dim = 64, .head_dim_v = 128, .block_n = 64, .num_q_buffers = 1, .writes_lse = true};
  static_assert(sm90::sends_out(full));
  for (const int keys : {50, 120, 300})
    expect_right<full>({.num_heads = 5, .seqlen_q = 200, .seqlen_k = keys});
  constexpr ForwardConfig without_turns{
      .head_dim = 64, .head_dim_v = 64, .block_n = 64, .num_q_buffers = 1, .takes_turns = false};
  expect_right<without_turns>({.num_heads = 12, .seqlen_q = 128, .seqlen_k = 50, .blocks = 2});
  constexpr ForwardConfig causal{.head_dim = 64,
                                 .head_dim_v = 256,
                                 .block_n = 64,
                                 .num_q_buffers = 1,
                                 .mask = MaskForm::upper,
                                 .trim = 1};
  static_assert(sm90::sends_out(causal) && sm90::hands_rows_over(causal));
  expect_right<causal>({.batch = 3, .seqlen_q = 300, .seqlen_k = 300, .is_causal = true});
}

// Item after item, of warpgroups that no turn keeps together: what lanes have read of an item and
// its Q goes back with the last of them.
TEST(EmulatedForward, OneQueryBufferWithoutTurns) {
  constexpr ForwardConfig config{.head_dim = 64,
                                 .head_dim_v = 64,
                                 .block_n = 64,
                                 .num_stages_k = 1,
                                 .num_stages_v = 1,
                                 .num_q_buffers = 1,
                                 .takes_turns = false,
                                 .writes_lse = true};
  expect_right<config>({.num_heads = 2, .seqlen_q = 200, .seqlen_k = 130, .blocks = 1});
}

// Keys that some rows of a tile do not see, whose values are NaN and infinite: those rows' results
// are what they are without them, whether they leave by TMA or by ordinary stores.
TEST(EmulatedForward, HiddenValuesThatAreNotFinite) {
  constexpr ForwardConfig staged{.head_dim = 64,
                                 .head_dim_v = 72,
                                 .block_n = 64,
                                 .num_stages_v = 3,
                                 .mask = MaskForm::upper,
                                 .trim = 1,
                                 .writes_lse = true};
  expect_right<staged>({.num_heads = 2,
                        .group_size = 2,
                        .seqlen_q = 128,
                        .seqlen_k = 200,
                        .is_causal = true,
                        .lost_keys = {130, 199}});
  constexpr ForwardConfig unstaged{.element = Element::fp16,
                                   .head_dim = 64,
                                   .head_dim_v = 64,
                                   .num_q_buffers = 1,
                                   .mask = MaskForm::interval};
  expect_right<unstaged>(
      {.num_heads = 1, .seqlen_q = 140, .seqlen_k = 140, .window_left = 50, .lost_keys = {60}});
}

}  // namespace
}  // namespace sirdar::emulator_tests
