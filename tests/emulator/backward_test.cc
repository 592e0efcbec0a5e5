// The Hopper backward on the emulated machine, held against float64 on hostile arguments: with gaps
// of NaN between rows, and a workspace of large numbers. Where inputs are finite nothing that the
// products make may have to be made again.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "core/elements.h"
#include "cuda/sm90/backward/arguments.h"
#include "emulator/support/backward_run.h"
#include "emulator/support/emulated_driver.h"
#include "emulator/support/emulated_steps.h"
#include "emulator/support/extent.h"
#include "emulator/support/problem_list.h"
#include "support/call.h"

namespace sirdar::emulator_tests {
namespace {

constexpr const char* kList = SIRDAR_SOURCE_DIR "/tests/emulator/backward.txt";
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<ListedProblem> selected() {
  std::vector<ListedProblem> chosen;
  for (const ListedProblem& one : listed_problems(kList))
    if (runs_everything() || one.is_everyday) chosen.push_back(one);
  return chosen;
}

// Weights times a slope that has no bound can leave fp16; such rows and keys are made again.
Lost lost_of(const std::string& text) {
  const auto has = [&](const char* word) { return text.find(word) != std::string::npos; };
  return has("fp16") && has("score_mod") ? Lost::anything : Lost::nothing;
}

class EmulatedBackward : public ::testing::TestWithParam<ListedProblem> {};

TEST_P(EmulatedBackward, MatchesFloat64) {
  const uint64_t seeds = runs_everything() ? 6 : 1;
  const uint64_t first = std::hash<std::string>()(GetParam().text) % 1000;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    // All items at one time; more items than run at one time; more key blocks of a head than that.
    constexpr int kNumSms[] = {16, 4, 2};
    expect_right(GetParam().text, seed, kNumSms[seed % 3], {}, lost_of(GetParam().text));
  }
}

INSTANTIATE_TEST_SUITE_P(Listed, EmulatedBackward, ::testing::ValuesIn(selected()),
                         [](const auto& row) {
                           return test::named_after(row.param.text, row.index);
                         });

// All heads of a row of the first sequence.
void fill_row(const TensorView& view, int64_t row, double even, double odd) {
  for (int64_t head = 0; head < view.shape[2]; ++head)
    for (int64_t column = 0; column < view.shape[3]; ++column)
      store_element(view, row * view.stride[1] + head * view.stride[2] + column,
                    column % 2 == 0 ? even : odd);
}

// What some rows and keys of a tile do not see reaches only those that do.
TEST(EmulatedBackwardHidden, NanAndInfinity) {
  std::vector<std::string> problems = {
      "bwd b1 s130 h1 d128 bf16 causal", "bwd b1 s130 hq2 hkv1 d64 bf16 window:50,10",
      "bwd b1 s100 h1 d192 dv128 bf16 causal", "bwd b1 s130 hq2 hkv1 d128 bf16 alibi causal",
      "bwd b1 s130 h1 d64 bf16 bias document"};
  if (runs_everything()) {
    problems.insert(
        problems.end(),
        {"bwd b1 sq130 sk200 hq4 hkv2 d128 fp16 dlse", "bwd b1 s130 h2 d128 fp16 causal",
         "bwd b2 sq140 sk190 h2 d64 bf16 seqused_q seqused_k causal",
         "bwd b1 sq200 sk150 h1 d128 bf16 window:60,10 nondeterministic",
         "bwd b1 s130 h1 d64 bf16 softcap:30 causal", "bwd b1 s130 h2 d64 bf16 mask:qk",
         "bwd b1 s130 h1 d192 dv128 bf16 softcap:3 window:60,20",
         "bwd b1 s130 h2 d128 bf16 bias causal", "bwd b2 s130 h2 d64 bf16 bias:hk:fp32 seqused_k",
         "bwd b1 s130 h1 d256 bf16 causal mask_mod:\"k % 3 > 0\" nondeterministic",
         "bwd b1 s130 h2 d128 bf16 bias:hqk:bf16 document score_mod:\"score - 0.1 * abs(q_pos - "
         "k)\" sink dsink",
         "bwd b1 s130 h2 d128 bf16 document causal", "bwd b1 s130 h2 d128 fp16 alibi causal",
         "bwd b1 s130 h2 d128 fp16 document causal", "bwd b1 s130 h1 d128 fp16 softcap:2"});
  }
  const auto plant = [](check::Inputs& inputs) {
    Args& args = inputs.args();
    fill_row(args.q, 20, kNaN, 1);
    fill_row(args.k, 75, 1, kNaN);
    fill_row(args.v, 80, kNaN, -kInf);
    fill_row(args.v, 45, 2, kInf);
    fill_row(args.dout, 30, kInf, 1);
    fill_row(args.dout, 70, kInf, kNaN);
    inputs.refresh_saved();
  };
  const uint64_t end = runs_everything() ? 6 : 4;
  for (const std::string& text : problems)
    for (uint64_t seed = 3; seed < end; ++seed)
      expect_right(text, seed, 16, plant, Lost::something);
}

// Nor does it leave a chunk, of those that are walked as sequences.
TEST(EmulatedBackwardHidden, NanAndInfinityOfLaterChunks) {
  for (const char* text : {"bwd b2 s300 hq2 hkv1 d128 bf16 causal chunk:128",
                           "bwd b1 sq300 sk420 h1 d64 fp16 chunk:128 top-left"}) {
    expect_right(
        text, 3, 16,
        [](check::Inputs& inputs) {
          Args& args = inputs.args();
          fill_row(args.q, 150, kNaN, 1);
          fill_row(args.k, 205, 1, kNaN);
          fill_row(args.v, 280, kNaN, -kInf);
          fill_row(args.dout, 160, kInf, 1);
          inputs.refresh_saved();
        },
        Lost::something);
  }
}

// A key that is -inf to every row has no gradient, and rows behind the end are no rows.
TEST(EmulatedBackwardHidden, AKeyOfMinusInfinity) {
  expect_right(
      "bwd b1 sq70 sk100 h1 d128 bf16 dlse", 3, 16,
      [](check::Inputs& inputs) {
        Args& args = inputs.args();
        for (int64_t row = 0; row < 70; ++row) store_element(args.q, row * args.q.stride[1], 1);
        store_element(args.k, 45 * args.k.stride[1], -kInf);
        inputs.refresh_saved();
      },
      Lost::anything);
}

// Nor does it reach what an expression makes of it where that does not look at the score.
TEST(EmulatedBackwardHidden, WhatALogitDoesNotDependOn) {
  for (const char* dtype : {"bf16", "fp16"}) {
    expect_right(
        fmt::format("bwd b1 sq50 sk70 h1 d64 {} score_mod:\"q > 11 ? max(score, 0.1) * score : k < "
                    "3 ? 0.0 : 3.0 * tanh(score / 3.0)\" causal",
                    dtype),
        3, 16,
        [&](check::Inputs& inputs) {
          fill_row(inputs.args().k, 1, kNaN, 1);
          fill_row(inputs.args().k, 40, kInf, 1);
          inputs.refresh_saved();
        },
        Lost::something);
  }
}

// fp16 has no room for P and dS as they are: gradients of any size.
TEST(EmulatedBackwardHalf, TakesGradientsOfAnySize) {
  for (const double factor : {0x1p9, 0x1p-9, 0.0}) {
    expect_right("bwd b1 sq70 sk130 h1 d128 fp16 dlse", 5, 16, [&](check::Inputs& inputs) {
      const TensorView& dout = inputs.args().dout;
      for_each_element(dout, [&](int64_t offset, int64_t) {
        store_element(dout, offset, factor * load_element(dout, offset));
      });
    });
  }
}

// An expression's slopes have no bound, and a gradient that they take out of fp16 is made again.
TEST(EmulatedBackwardHalf, TakesSlopesOfAnySize) {
  const char* const text =
      "bwd b1 sq70 sk130 h2 d128 fp16 score_mod:\"score * gain[h]\" tensor:gain:fp32:1";
  for (const double gain : {-60.0, 0x1p-12}) {
    expect_right(
        text, 7, 16,
        [&](check::Inputs& inputs) {
          const TensorView& gains = inputs.args().tensors[0].view;
          store_element(gains, 0, gain);
          store_element(gains, gains.stride[0], 3 * gain);
          inputs.refresh_saved();
        },
        std::abs(gain) > 1 ? Lost::something : Lost::nothing);
  }
}

// Nor for weights of 2 and more, of an lse that is not the rows' own. What is allowed is for
// weights of e^3 less.
TEST(EmulatedBackwardHalf, TakesWeightsAboveOne) {
  const BackwardResult result =
      run_backward("bwd b1 sq70 sk130 h1 d128 fp16 dlse", 6, 16, [](check::Inputs& inputs) {
        const TensorView& lse = inputs.args().lse;
        for_each_element(lse, [&](int64_t offset, int64_t index) {
          if (index % 50 == 7) store_element(lse, offset, load_element(lse, offset) - 3);
        });
      });
  EXPECT_NE(result.lost, "");
  ASSERT_EQ(result.verdict.deviations.size(), 3u);
  for (const check::Deviation& deviation : result.verdict.deviations)
    EXPECT_LT(deviation.ratio, std::exp(3)) << deviation.where;
}

// An lse far from zero has few digits left behind the point, or none, but a softmax is one of
// differences. Of some rows, so that keys see both kinds.
TEST(EmulatedBackwardSaved, LevelsFarFromZero) {
  struct Case {
    const char* text;
    std::vector<double> levels;
  };
  std::vector<Case> cases = {
      {"bwd b1 sq70 sk90 hq2 hkv1 d64 bf16 bias:hk:fp32 causal", {-1e4, 3e3, 1e9}},
      {"bwd b2 sq70 sk90 h2 d128 bf16 bias:q:fp32 sink dsink", {-3e4, 3e38}}};
  if (runs_everything()) {
    cases.insert(cases.end(),
                 {{"bwd b2 sq70 sk90 hq2 hkv1 d128 fp16 bias:hqk causal", {-3e4, 5e3}},
                  {"bwd b2 sq70 sk90 h2 d64 bf16 bias:bhqk:fp32 causal seqused_k", {-1e12, 1e38}},
                  {"bwd b1 sq70 sk90 hq2 hkv1 d256 bf16 document bias:hqk", {2e4}},
                  {"bwd b3 sq70 sk90 ragged:110,200 hq2 hkv1 d128 bf16 bias:bqk:bf16", {-1e5}},
                  {"bwd b1 sq70 sk90 h2 d128 bf16 bias:hqk:bf16 nondeterministic", {1e8}}});
  }
  for (const auto& [text, levels] : cases) {
    for (const double level : levels) {
      expect_right(text, 3, 16, [&](check::Inputs& inputs) {
        const TensorView& bias = inputs.args().bias;
        const bool is_of_rows = bias.shape[2] > 1;
        for_each_element(bias, [&](int64_t offset, int64_t index) {
          const int64_t row = index / bias.shape[3] % bias.shape[2];
          if (is_of_rows && row % 5 > 1) return;
          const double own = std::abs(level) < 1e30 ? load_element(bias, offset) : 0;
          store_element(bias, offset, level + own);
        });
        inputs.refresh_saved();
      });
    }
  }
}

// The lowest finite number at every key is no mask: such a row is the plain mean.
TEST(EmulatedBackwardSaved, TheLowestFiniteNumberAtEveryKey) {
  for (const char* text :
       {"bwd b1 s70 h1 d64 bf16 bias:qk:fp32", "bwd b1 s70 h1 d64 bf16 bias:hqk:bf16 causal"}) {
    expect_right(text, 3, 16, [&](check::Inputs& inputs) {
      const TensorView& bias = inputs.args().bias;
      const double lowest = bias.dtype == DType::bf16 ? -0x1.fep127 : -0x1.fffffep127;
      for_each_element(bias, [&](int64_t offset, int64_t index) {
        if (index / bias.shape[3] % bias.shape[2] % 3 == 0) store_element(bias, offset, lowest);
      });
      inputs.refresh_saved();
    });
  }
}

// Slopes and distances move a row, and so do tensors of an expression.
TEST(EmulatedBackwardSaved, LevelsOfAlibiAndExpressions) {
  // bf16 without a mask hides nothing, and has such rows all the same.
  expect_right("bwd b1 sq140 sk200 h2 d64 bf16 alibi", 3, 16, [](check::Inputs& inputs) {
    const TensorView& slopes = inputs.args().alibi;
    for_each_element(slopes, [&](int64_t offset, int64_t) { store_element(slopes, offset, -300); });
    inputs.refresh_saved();
  });
  expect_right(
      "bwd b3 sq70 sk90 ragged:110,220 hq2 hkv1 d128 bf16 alibi causal:top-left sink dsink "
      "dlse",
      3, 16, [](check::Inputs& inputs) {
        const TensorView& slopes = inputs.args().alibi;
        for_each_element(slopes,
                         [&](int64_t offset, int64_t) { store_element(slopes, offset, 2e3); });
        inputs.refresh_saved();
      });
  expect_right(
      "bwd b1 sq70 sk90 h2 d64 bf16 score_mod:\"score * gain[h] + rel[q_pos - k + 31]\" "
      "tensor:gain:fp32:1:grad tensor:rel:fp32:1:grad causal",
      3, 16, [](check::Inputs& inputs) {
        const TensorView& rel = inputs.args().tensors[1].view;
        for_each_element(rel, [&](int64_t offset, int64_t) {
          store_element(rel, offset, load_element(rel, offset) - 1e5);
        });
        inputs.refresh_saved();
      });
}

// Keys that are a part of a larger problem's, whose out and lse are given.
TEST(EmulatedBackwardSaved, OutAndLseAreTheCallers) {
  const auto edit = [](check::Inputs& inputs) {
    const TensorView &lse = inputs.args().lse, &out = inputs.args().out;
    for_each_element(lse, [&](int64_t offset, int64_t index) {
      const double own = load_element(lse, offset);
      store_element(lse, offset, index % 5 == 0 ? -kInf : index % 5 == 1 ? own + 1.5 : own + 0.25);
    });
    for_each_element(out, [&](int64_t offset, int64_t) {
      store_element(out, offset, 0.5 * load_element(out, offset));
    });
  };
  for (const char* dtype : {"bf16", "fp16"})
    expect_right(fmt::format("bwd b1 sq70 sk90 hq2 hkv1 d128 {} softcap:2 dlse", dtype), 5, 16,
                 edit);
}

void set(const TensorView& view, std::vector<int32_t> values) {
  for (size_t n = 0; n < values.size(); ++n)
    static_cast<int32_t*>(view.data)[static_cast<int64_t>(n) * view.stride[0]] = values[n];
}

// Reported of other kernels (tests/conformance/corpus/bugs.txt): rows whose lse is about -115 in
// lengths that end in half a tile, where a score of 0 behind the end would weigh e^115.
TEST(EmulatedBackwardCases, LowLevelsAndHalfTiles) {
  for (const char* text : {"bwd b1 s192 h1 d64 bf16 causal", "bwd b1 s64 h1 d64 bf16 mask:qk"}) {
    expect_right(text, 3, 16, [](check::Inputs& inputs) {
      const TensorView &q = inputs.args().q, &k = inputs.args().k;
      for (int64_t row = 0; row < q.shape[1]; ++row) {
        store_element(q, row * q.stride[1], 1);
        store_element(k, row * k.stride[1], -120 * 8);
      }
      inputs.refresh_saved();
    });
  }
}

// The lowest finite number at all rows of whole key tiles: those keys get 0, the others what they
// get alone.
TEST(EmulatedBackwardCases, KeyTilesOfTheLowestFiniteNumber) {
  expect_right("bwd b1 sq70 sk190 h1 d64 bf16 bias:qk:fp32", 3, 16, [](check::Inputs& inputs) {
    const TensorView& bias = inputs.args().bias;
    for_each_element(bias, [&](int64_t offset, int64_t index) {
      store_element(bias, offset, index % 190 < 128 ? -0x1.fffffep127 : 0);
    });
    inputs.refresh_saved();
  });
}

// Sequences without queries or keys at both ends.
TEST(EmulatedBackwardCases, LengthsOfZeroAtTheEnds) {
  expect_right("bwd b4 sq60 sk70 ragged:100,200 hq4 hkv1 d256 bf16", 3, 16,
               [](check::Inputs& inputs) {
                 set(inputs.args().cu_seqlens_q, {0, 0, 60, 100, 100});
                 set(inputs.args().cu_seqlens_k, {0, 50, 120, 130, 200});
                 inputs.refresh_saved();
               });
  expect_right("bwd b4 sq60 sk70 ragged:170,130 h1 d64 bf16 causal", 3, 16,
               [](check::Inputs& inputs) {
                 set(inputs.args().cu_seqlens_q, {0, 50, 110, 160, 170});
                 set(inputs.args().cu_seqlens_k, {0, 0, 60, 60, 130});
                 inputs.refresh_saved();
               });
}

// Scores of thousands: no gradient passes a soft-cap that they saturate.
TEST(EmulatedBackwardCases, SaturatedSoftcap) {
  expect_right("bwd b1 sq70 sk90 h1 d64 bf16 softcap:30 causal", 3, 16, [](check::Inputs& inputs) {
    const TensorView& q = inputs.args().q;
    for_each_element(q, [&](int64_t offset, int64_t index) {
      if (index / 64 % 2 == 0) store_element(q, offset, 1000 * load_element(q, offset));
    });
    inputs.refresh_saved();
  });
}

// Blocks of a ring that have run ahead wait for the others with the dQ of their last tile, and then
// have items without tiles, whose K and V are loaded all the same.
TEST(EmulatedBackwardItems, WithoutTilesBehindOneThatWaits) {
  const uint64_t end = runs_everything() ? 8 : 2;
  for (uint64_t seed = 1; seed < end; ++seed) {
    expect_right(
        "bwd b7 sq100 sk256 h1 d256 bf16 seqused_k | hop_steps=1", seed, 4,
        [](check::Inputs& inputs) {
          set(inputs.args().seqused_k, {100, 100, 256, 0, 0, 90, 0});
          inputs.refresh_saved();
        },
        Lost::anything);  // keys that were not used were NaN
  }
}

// A tile is not converted while any of its turns is to come, whatever is said of others.
TEST(EmulatedBackwardEarly, ConvertWaitsForEveryTurn) {
  std::vector<std::string> problems = {
      "bwd b2 sq300 sk500 hq2 hkv1 d64 bf16 | num_sums=2 hop_steps=1 splits_turns=true",
      "bwd b1 sq200 sk410 h1 d64 bf16 causal dlse"};
  for (const std::string& text : problems) {
    SCOPED_TRACE(text);
    const ListedKernels kernels = listed_kernels(text, "cuda.sm90.backward").value();
    const auto config = kernels.config.as<sm90::BackwardConfig>();
    ASSERT_TRUE(config.converts_early);
    check::Inputs inputs(kernels.problem, 1, check::Style::plain, 16);
    inputs.accept();
    const sm90::BackwardWorkspace workspace = sm90::workspace_of(kernels.problem, config, {});
    inputs.set_workspace(workspace.end);
    inputs.reset_outputs();
    fill_with_numbers(inputs.args());
    const EmulatedDriver driver;
    std::vector<cuda::Step> steps =
        sm90::make_steps(kernels.problem, config, {}, inputs.args(), 16).value();
    const std::vector<cuda::Step> convert = {steps.back()};
    steps.pop_back();
    ASSERT_EQ(launch_all(kernels, steps, 1), "");
    auto* const turns =
        reinterpret_cast<int*>(static_cast<std::byte*>(inputs.args().workspace) + workspace.turns);
    const int64_t tiles = kernels.problem.batch * kernels.problem.num_heads_q *
                          ((kernels.problem.seqlen_q + config.block_m - 1) / config.block_m);
    for (int64_t i = 0; i < tiles * config.num_sums * tile_parts(config); ++i) {
      EXPECT_GT(turns[i]--, 0);
      EXPECT_NE(launch_all(kernels, convert, 1), "") << i;
      ++turns[i];
    }
    EXPECT_EQ(launch_all(kernels, convert, 1), "");
  }
}

// What convert waits for, beside the main kernel: each of its waits left out is noticed.
TEST(EmulatedBackwardEarly, NoWaitOfConvertCanBeLeftOut) {
  std::vector<std::string> problems = {
      "bwd b2 sq300 sk500 hq2 hkv1 d64 bf16 | num_sums=2 hop_steps=1 splits_turns=true"};
  if (runs_everything())
    problems.push_back(
        "bwd b2 sq300 sk300 hq4 hkv2 d128 bf16 causal | converts_early=true num_spare=1");
  for (const std::string& text : problems) {
    SCOPED_TRACE(text);
    const ListedKernels kernels = listed_kernels(text, "cuda.sm90.backward").value();
    const auto config = kernels.config.as<sm90::BackwardConfig>();
    check::Inputs inputs(kernels.problem, 1, check::Style::plain, 16);
    inputs.accept();
    inputs.set_workspace(sm90::workspace_of(kernels.problem, config, {}).end);
    const check::Oracle oracle = check::make_oracle(kernels.problem, inputs.args());
    const EmulatedDriver driver;
    const std::vector<cuda::Step> steps =
        sm90::make_steps(kernels.problem, config, {}, inputs.args(), 16).value();
    const auto fault_of = [&](uint64_t seed, const emulator::Mutation& mutation,
                              emulator::Coverage* coverage) {
      inputs.reset_outputs();
      fill_with_numbers(inputs.args());
      EXPECT_EQ(launch_all(kernels, {steps[0]}, seed), "");
      emulator::Overlapping main = overlapping(kernels, steps[1], seed);
      main.launch.resident = static_cast<int>(main.launch.grid.x);
      main.launch.mutation = mutation;
      main.launch.coverage = coverage;
      std::string fault = emulator::launch(main, overlapping(kernels, steps[2], seed)).fault;
      for (const std::string& wrong : check::judge(oracle).faults) fault += wrong;
      return fault;
    };
    emulator::Coverage coverage;
    EXPECT_EQ(fault_of(1, {}, &coverage), "");
    int planted = 0;
    for (const emulator::Mutation& mutation : emulator::plantable(coverage)) {
      const bool waits = mutation.op == emulator::Op::kWaitGlobal ||
                         mutation.op == emulator::Op::kGridWait ||
                         mutation.op == emulator::Op::kSyncThreads;
      if (mutation.file != "convert.cuh" || !waits ||
          mutation.change != emulator::Change::kLeftOut) {
        continue;
      }
      ++planted;
      std::string fault;
      for (uint64_t seed = 1; seed < 9 && fault.empty(); ++seed)
        fault = fault_of(seed, mutation, nullptr);
      EXPECT_NE(fault, "") << text_of(mutation);
    }
    EXPECT_EQ(planted, 3);
  }
}

// Every gradient of a run on data that do not depend on `seed`, which draws the schedule.
std::vector<double> gradients_of(const std::string& text, uint64_t seed) {
  const ListedKernels kernels = listed_kernels(text, "cuda.sm90.backward").value();
  const auto config = kernels.config.as<sm90::BackwardConfig>();
  const expression::DeviceModification modification = expression::modification_of(kernels.problem);
  check::Inputs inputs(kernels.problem, 1, check::Style::plain, 16);
  inputs.accept();
  inputs.set_workspace(sm90::workspace_of(kernels.problem, config, modification).end);
  inputs.reset_outputs();
  fill_with_numbers(inputs.args());
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
