// The CPU backward against float64 on every instruction set of this machine, and its promises: bits
// that do not depend on threads or ranges, and masked memory that is as if never read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "check/compare.h"
#include "check/run_check.h"
#include "core/elements.h"
#include "plan/implementation.h"

namespace sirdar {
namespace {

using Knobs = std::vector<std::pair<std::string, std::string>>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const char* name : {"scalar", "neon", "avx2", "avx512"}) {
    PlanOptions options;
    options.implementation = "cpu.backward";
    options.isa = name;
    if (Plan::create(Problem::parse("bwd s8").value(), options).ok()) names.push_back(name);
  }
  return names;
}

PlanOptions options_for(const std::string& isa, int num_threads, Knobs knobs = {}) {
  PlanOptions options;
  options.implementation = "cpu.backward";
  options.isa = isa;
  options.num_threads = num_threads;
  options.knobs = std::move(knobs);
  return options;
}

class CpuBackward : public ::testing::TestWithParam<const char*> {};

TEST_P(CpuBackward, IsRightToFloat64) {
  const Problem problem = Problem::parse(GetParam()).value();
  for (const std::string& isa : instruction_sets()) {
    for (const int num_threads : {1, 2}) {
      const check::Report report = check::check(problem, options_for(isa, num_threads), 5);
      EXPECT_TRUE(report.ok) << isa << ", " << num_threads << " threads: " << report.text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Problems, CpuBackward,
    ::testing::Values(
        "bwd s1 d1", "bwd b2 sq33 sk65 hq2 hkv2 d64", "bwd s128 h2 d80", "bwd s129 h1 d128 causal",
        "bwd sq0 sk5 h2 d8", "bwd sq5 sk0 h2 d8", "bwd sq200 sk150 hq3 hkv1 d40 dv24 causal",
        "bwd b2 sq90 sk140 hq4 hkv1 d32 causal:top-left", "bwd s300 h1 d16 window:40,10",
        "bwd sq100 sk300 h2 d33 window:,7", "bwd s150 h2 d24 chunk:37",
        "bwd b2 s140 h2 d20 document", "bwd b2 s140 h2 d20 document causal",
        "bwd b2 s100 h2 d17 mask", "bwd s100 h2 d17 mask:k",
        "bwd b3 sq50 sk60 hq2 hkv1 d16 ragged:100,130 causal",
        "bwd b3 sq50 sk60 hq2 hkv1 d16 seqused_q seqused_k", "bwd s70 h1 d512 dv8",
        "bwd s70 h1 d8 dv512 causal", "bwd s100 h2 d32 softcap:5",
        "bwd s100 h2 d32 softcap:30 causal", "bwd s100 h4 d32 alibi causal",
        "bwd s100 h2 d32 sink dsink dlse", "bwd b2 s100 h2 d32 bias dbias",
        "bwd b2 s100 h2 d32 bias:hqk:bf16 dbias causal", "bwd b2 s100 h2 d32 bias:bk dbias",
        "bwd b2 s100 hq4 hkv2 d32 bias:q dbias", "bwd b2 s100 h2 d32 bias:1 dbias dlse",
        "bwd b2 s150 hq4 hkv2 d16 bias:bh dbias window:50,20",
        "bwd b2 sq70 sk90 hq4 hkv2 d24 dv40 causal softcap:20 bias:hk dbias alibi sink dsink dlse "
        "document",
        "bwd s60 h2 d16 scale:-0.4", "bwd s60 h2 d16 scale:0",
        "bwd sq200 sk150 hq3 hkv1 d40 dv24 bf16 causal", "bwd sq100 sk290 h1 d33 fp16 dlse",
        "bwd s150 h2 d64 bf16 out:fp32 softcap:20", "bwd s70 h2 d130 fp16 out:fp32 sink dsink",
        "bwd sq130 sk200 hq4 hkv2 d40 dropout:0.3 causal",
        "bwd b3 sq50 sk160 hq2 hkv1 d16 bf16 ragged:100,250 dropout:0.1",
        "bwd b3 sq150 sk60 hq2 hkv1 d16 fp16 seqused_q seqused_k alibi",
        "bwd b2 s140 h2 d20 bf16 document bias:hqk dbias dropout:0.25", "bwd s40 h1 d512 bf16"));

INSTANTIATE_TEST_SUITE_P(
    Expressions, CpuBackward,
    ::testing::Values(
        "bwd s100 h2 d32 mask_mod:\"q_pos >= k && q_pos - k < 40\"",
        "bwd b2 sq90 sk260 hq4 hkv2 d16 mask_mod:\"(q / 16 + k / 64) % 3 == 0\"",
        "bwd s40 h1 d8 mask_mod:\"false\"",
        // Edges that are no multiples of a vector, from both sides and inside a block.
        "bwd s128 h1 d16 mask_mod:\"k < 80\"", "bwd s128 h1 d16 mask_mod:\"k >= 16\"",
        "bwd sq7 sk130 hq4 hkv2 d8 mask_mod:\"k >= 48 && k < 112\"",
        "bwd sq7 sk130 h2 d8 bias softcap:3 mask_mod:\"k / 16 != 5 && k / 16 != 6 && k < 136\"",
        "bwd b2 s140 h2 d20 mask_mod:\"q_pos >= k && doc[b, q] == doc[b, k]\" tensor:doc:int32:2",
        "bwd s150 h2 d24 causal score_mod:\"score - slope[h] * abs(q_pos - k)\" "
        "tensor:slope:fp32:1:grad",
        "bwd s100 h2 d16 score_mod:\"score + table[h, min(max(q_pos - k, -20), 20) + 20]\" "
        "tensor:table:fp32:2:grad",
        "bwd s100 h2 d16 score_mod:\"cap * tanh(score / cap)\" scalar:cap",
        "bwd b2 s100 hq4 hkv2 d16 causal dlse score_mod:\"score * exp(gain[h])\" "
        "tensor:gain:fp32:1:grad",
        "bwd s90 h2 d16 softcap:20 bias dbias alibi score_mod:\"score * (0.5 + 0.1 * (q % 3))\" "
        "mask_mod:\"k % 3 != 1\"",
        "bwd s80 h2 d16 score_mod:\"(q + k) % 3 == 0 ? -inf : score\"",
        "bwd s80 h2 d16 score_mod:\"k / 8\"",
        "bwd b3 sq50 sk60 hq2 hkv1 d16 ragged:100,130 score_mod:\"score * w[k] + w[q]\" "
        "tensor:w:fp32:1:grad mask_mod:\"q_pos >= k - b\"",
        "bwd s70 h2 d16 document sink dsink score_mod:\"score + 0.1 * sigmoid(score)\"",
        "bwd s300 h1 d16 causal score_mod:\"score + 0.0 * sqrt(q_pos - k)\"",
        "bwd s70 h2 d16 score_mod:\"2.0 * tanh(4.0 * score) - sigmoid(9.0 * score) * w[k]\" "
        "tensor:w:fp32:1:grad",
        "bwd b2 s70 hq4 hkv2 d8 score_mod:\"score + bias[q, k]\" tensor:bias:fp32:2:grad",
        "bwd sq40 sk150 h2 d8 causal score_mod:\"score * (1.0 + w[k]) + t[h, k / 8] * w[q]\" "
        "tensor:w:fp32:1:grad tensor:t:fp32:2:grad",
        "bwd s150 h2 d8 score_mod:\"score + w[k % 7 + q % 5] * w[min(abs(q_pos - k), 11)]\" "
        "tensor:w:fp32:1:grad mask_mod:\"(q + k) % 3 != 0\"",
        "bwd s70 h2 d8 score_mod:\"score > 0 ? sqrt(score + 1.0) * w[q % 3] : max(score, w[k])\" "
        "tensor:w:fp32:1:grad"));

// Far weights make products below 1.2e-38, which may be 0.
TEST(CpuBackwardJudged, WhatIsFlushedIsNoError) {
  const Problem problem = Problem::parse(
                              "bwd b3 sq3 sk200 hq5 hkv1 d8 fp16 window:40,10 "
                              "score_mod:\"score + u[b, h, q, k]\" tensor:u:fp32:4:grad")
                              .value();
  const check::Report report = check::check(problem, options_for("", 1), 650);
  EXPECT_TRUE(report.ok) << report.text;
}

// All outputs of a run, element by element.
std::vector<std::vector<float>> outputs(check::Inputs& inputs, const PlanOptions& options) {
  const Result<Plan> plan = Plan::create(inputs.problem(), options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  inputs.reset_outputs();
  inputs.set_workspace(plan.value().workspace_bytes());
  const Status status = plan.value().run(inputs.args());
  EXPECT_TRUE(status.ok()) << status.message();
  std::vector<std::vector<float>> all;
  const Args& args = inputs.args();
  std::vector<TensorView> views{args.dq, args.dk, args.dv, args.dbias, args.dsink};
  for (const NamedTensor& dtensor : args.dtensors) views.push_back(dtensor.view);
  for (const TensorView& view : views) {
    all.emplace_back();
    if (!view.present()) continue;
    for_each_element(view, [&](int64_t offset, int64_t) {
      all.back().push_back(static_cast<float>(load_element(view, offset)));
    });
  }
  return all;
}

void expect_same_bits(const std::vector<std::vector<float>>& a,
                      const std::vector<std::vector<float>>& b, const std::string& what) {
  for (size_t n = 0; n < a.size(); ++n) {
    ASSERT_EQ(a[n].size(), b[n].size());
    for (size_t i = 0; i < a[n].size(); ++i)
      ASSERT_TRUE(a[n][i] == b[n][i] || (std::isnan(a[n][i]) && std::isnan(b[n][i])))
          << what << ": output " << n << ", element " << i << ", " << a[n][i] << " and " << b[n][i];
  }
}

// Any pair may add to any element of a tensor that an expression reads.
TEST(CpuBackwardBits, OfTensorGradientsDoNotDependOnThreads) {
  for (const char* text :
       {"bwd b2 s300 hq4 hkv2 d8 causal score_mod:\"score + table[min(q_pos - k, 40)] * gain[h]\" "
        "tensor:table:fp32:1:grad tensor:gain:fp32:1:grad",
        "bwd s260 h1 d8 score_mod:\"score * w[q % 4] + w[k]\" tensor:w:fp32:1:grad",
        "bwd s150 h3 d8 score_mod:\"score + bias[q, k]\" tensor:bias:fp32:2:grad"}) {
    check::Inputs inputs(Problem::parse(text).value(), 3, check::Style::plain);
    for (const std::string& isa : instruction_sets()) {
      const auto one = outputs(inputs, options_for(isa, 1));
      expect_same_bits(one, outputs(inputs, options_for(isa, 2)), text);
      expect_same_bits(one, outputs(inputs, options_for(isa, 7)), text);
    }
  }
}

TEST(CpuBackwardBits, DoNotDependOnThreadsOrRanges) {
  for (const char* text :
       {"bwd b2 sq520 sk390 hq4 hkv2 d16 causal dlse", "bwd s700 h1 d8 window:200,50",
        "bwd b2 s300 hq4 hkv2 d8 bias:hqk dbias sink dsink", "bwd s300 h2 d8 bias:1 dbias",
        "bwd s600 h2 d8 bias:q dbias", "bwd b2 s300 hq2 hkv1 d8 bf16 causal",
        "bwd s270 h2 d8 fp16 dropout:0.4",
        "bwd s300 h2 d8 score_mod:\"score - 0.1 * abs(q_pos - k)\" mask_mod:\"k % 7 != q % 5\""}) {
    check::Inputs inputs(Problem::parse(text).value(), 3);
    for (const std::string& isa : instruction_sets()) {
      const auto one = outputs(inputs, options_for(isa, 1));
      expect_same_bits(one, outputs(inputs, options_for(isa, 2)), text);
      expect_same_bits(one, outputs(inputs, options_for(isa, 7)), text);
      for (const char* range_n : {"128", "256", "1024"}) {
        const Knobs knobs = {{"range_n", range_n}};
        expect_same_bits(one, outputs(inputs, options_for(isa, 2, knobs)), text);
      }
    }
  }
}

// Long enough that the terms of dq are summed over two blocks.
TEST(CpuBackwardBits, OfLongSequencesDoNotDependOnRanges) {
  for (const char* text : {"bwd sq150 sk2100 h1 d8", "bwd sq260 sk2500 hq2 hkv1 d8 window:700,9"}) {
    const Problem problem = Problem::parse(text).value();
    check::Inputs inputs(problem, 3);
    for (const std::string& isa : instruction_sets()) {
      const check::Report report = check::check(problem, options_for(isa, 2), 5);
      EXPECT_TRUE(report.ok) << isa << ": " << report.text;
      const auto one = outputs(inputs, options_for(isa, 1));
      expect_same_bits(one, outputs(inputs, options_for(isa, 2)), text);
      for (const char* range_n : {"256", "768", "2560"})
        expect_same_bits(one, outputs(inputs, options_for(isa, 3, {{"range_n", range_n}})), text);
      const Result<Plan> cut = Plan::create(problem, options_for(isa, 1, {{"range_n", "128"}}));
      ASSERT_FALSE(cut.ok());
      EXPECT_NE(cut.status().message().find("not a multiple of 256"), std::string::npos)
          << cut.status().message();
    }
  }
}

void fill(const TensorView& view, int64_t row, float value) {
  for (int64_t b = 0; b < view.shape[0]; ++b) {
    for (int64_t h = 0; h < view.shape[2]; ++h) {
      for (int64_t c = 0; c < view.shape[3]; ++c) {
        const int64_t at[] = {b, row, h, c};
        static_cast<float*>(view.data)[broadcast_offset(view, at, false)] = value;
      }
    }
  }
}

void expect_never_read(const std::string& words, int64_t first_hidden) {
  const Problem problem = Problem::parse(words).value();
  for (const std::string& isa : instruction_sets()) {
    check::Inputs inputs(problem, 9, check::Style::plain);
    const auto set = [&](float value) {
      for (int64_t key = first_hidden; key < problem.seqlen_k; ++key) {
        fill(inputs.args().k, key, value);
        fill(inputs.args().v, key, value);
      }
      inputs.accept();
    };
    set(0);
    const auto clean = outputs(inputs, options_for(isa, 2));
    for (const float poison : {kNan, std::numeric_limits<float>::infinity()}) {
      set(poison);
      expect_same_bits(clean, outputs(inputs, options_for(isa, 2)), isa + " " + words);
    }
  }
}

TEST(CpuBackwardMasks, WhatNoPairShowsIsAsIfNeverRead) {
  expect_never_read("bwd sq200 sk260 h2 d24 causal:top-left window:40, dlse", 200);
  for (const int64_t edge : {16, 48, 80, 96, 176, 208}) {
    expect_never_read("bwd sq40 sk260 h2 d24 mask_mod:\"k < " + std::to_string(edge) + "\" dlse",
                      edge);
  }
}

TEST(CpuBackwardMasks, EmptyRowsTakeAndGiveNothing) {
  // Bottom-right: the first 60 of 100 queries see none of the 40 keys.
  const Problem problem = Problem::parse("bwd sq100 sk40 h2 d24 causal sink dsink").value();
  for (const std::string& isa : instruction_sets()) {
    check::Inputs inputs(problem, 11, check::Style::plain);
    // Without a sink's weight too: their lse becomes -inf.
    for (int64_t row = 0; row < 60; ++row) {
      for (int64_t h = 0; h < 2; ++h) {
        const int64_t at[] = {0, h, row};
        static_cast<float*>(
            inputs.args().lse.data)[broadcast_offset(inputs.args().lse, at, false)] =
            -std::numeric_limits<float>::infinity();
      }
    }
    inputs.accept();
    const auto clean = outputs(inputs, options_for(isa, 1));
    for (int64_t row = 0; row < 60; ++row) {
      fill(inputs.args().q, row, kNan);
      fill(inputs.args().dout, row, kNan);
      fill(inputs.args().out, row, kNan);
    }
    inputs.accept();
    expect_same_bits(clean, outputs(inputs, options_for(isa, 1)), isa);
    for (int64_t row = 0; row < 60; ++row) {
      for (int64_t c = 0; c < 48; ++c)
        EXPECT_EQ(clean[0][static_cast<size_t>(row * 48 + c)], 0) << row;
    }
  }
}

// A NaN in one visible value reaches the queries that see it and the keys that they see, no others:
// whatever a masked pair's score is, and whoever brought its row into memory.
class NansInTheBackward : public ::testing::TestWithParam<const char*> {
 protected:
  static void expect_in_its_chunk(const std::vector<float>& result, const std::string& what) {
    for (size_t i = 0; i < result.size(); ++i) {
      const size_t row = i / 32;
      EXPECT_TRUE(!std::isnan(result[i]) || (row >= 70 && row < 80)) << what << row;
    }
  }
};

TEST_P(NansInTheBackward, ReachOnlyWhatDependsOnThem) {
  const Problem problem = Problem::parse(GetParam()).value();
  const Knobs short_ranges = {{"range_n", "128"}};
  for (const std::string& isa : instruction_sets()) {
    for (const std::string name : {"q", "k", "v", "dout"}) {
      check::Inputs inputs(problem, 13, check::Style::plain);
      const Args& args = inputs.args();
      const TensorView& view = name == "q"   ? args.q
                               : name == "k" ? args.k
                               : name == "v" ? args.v
                                             : args.dout;
      fill(view, 75, kNan);
      inputs.accept();
      const auto result = outputs(inputs, options_for(isa, 1));
      for (size_t n = 0; n < 3; ++n) {
        expect_in_its_chunk(result[n], isa + " " + name + ", output " + std::to_string(n) + ": ");
        const bool reached =
            std::any_of(result[n].begin(), result[n].end(), [](float x) { return std::isnan(x); });
        EXPECT_TRUE(reached || (n == 2 && name == "v")) << isa << " " << name << " " << n;
      }
      expect_same_bits(result, outputs(inputs, options_for(isa, 2)), isa + " " + name);
      expect_same_bits(result, outputs(inputs, options_for(isa, 3, short_ranges)),
                       isa + " " + name + ", short ranges");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Problems, NansInTheBackward,
                         ::testing::Values("bwd s300 h2 d16 chunk:10",
                                           "bwd s300 h2 d16 chunk:10 softcap:2"));

// Rows that a mask hides whole hold NaN: as if never read, under a soft-cap and on many threads
// too.
TEST(CpuBackwardMasks, NansInHiddenRowsOfATileDoNothing) {
  for (const char* text : {"bwd sq456 sk256 h2 d8 softcap:3.5 causal dlse",
                           "bwd sq70 sk40 h2 d8 softcap:3.5 causal"}) {
    const Problem one = Problem::parse(text).value();
    const int64_t hidden = one.seqlen_q - one.seqlen_k;
    for (const std::string& isa : instruction_sets()) {
      check::Inputs inputs(one, 9, check::Style::plain);
      const auto clean = outputs(inputs, options_for(isa, 1));
      for (int64_t row = 0; row < hidden; ++row) {
        fill(inputs.args().q, row, kNan);
        fill(inputs.args().dout, row, kNan);
      }
      inputs.accept();
      for (const int threads : {1, 2, 5})
        expect_same_bits(clean, outputs(inputs, options_for(isa, threads)), isa);
    }
  }
}

// Logits at a level where the rounding of an fp32 lse is larger than their differences.
TEST(CpuBackwardLevels, ALargeLseIsNotTakenAtItsRounding) {
  const Problem problem = Problem::parse("bwd sq40 sk70 h1 d4 scale:1").value();
  for (const std::string& isa : instruction_sets()) {
    check::Inputs inputs(problem, 17, check::Style::plain);
    for (int64_t row = 0; row < 40; ++row) fill(inputs.args().q, row, 4096);
    for (int64_t row = 0; row < 70; ++row)
      fill(inputs.args().k, row, 1024 + static_cast<float>(row % 3) * 0.0001220703125f);
    inputs.refresh_saved();
    inputs.accept();
    const std::vector<check::Expected> expected = check::expected_outputs(problem, inputs.args());
    const auto result = outputs(inputs, options_for(isa, 1));
    // Not dq, a sum over nearly equal keys that cancels.
    for (const size_t n : {1u, 2u}) {
      double largest = 0;
      for (const double x : expected[n].value) largest = std::max(largest, std::abs(x));
      EXPECT_GT(largest, 0.01);
      for (size_t i = 0; i < expected[n].value.size(); ++i)
        ASSERT_NEAR(result[n][i], expected[n].value[i], 1e-5 * largest) << isa << " " << n;
    }
  }
}

}  // namespace
}  // namespace sirdar
