// The library's Hopper forward on the emulated machine, for every kind of problem that it takes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "emulator/support/emulated_call.h"
#include "emulator/support/extent.h"
#include "support/sanitized.h"

namespace sirdar::emulator_tests {
namespace {

constexpr const char* kList = SIRDAR_SOURCE_DIR "/tests/emulator/problems.txt";

// Sanitizers look at the emulator and at what the kernels read of the caller's memory.
std::vector<ListedProblem> selected() {
  std::vector<ListedProblem> all = listed_problems(kList), chosen;
  for (const ListedProblem& one : all)
    if (runs_everything() || one.is_everyday) chosen.push_back(one);
  if (!test::kIsSanitized || runs_everything()) return chosen;
  std::vector<ListedProblem> few;
  for (size_t i = 0; i < chosen.size(); i += 4) few.push_back(chosen[i]);
  return few;
}

class EmulatedProblems : public ::testing::TestWithParam<ListedProblem> {};

TEST_P(EmulatedProblems, MatchFloat64) {
  EmulatedCall call(GetParam().text);
  const uint64_t seeds = runs_everything() ? 12 : 1;
  // Another schedule for each problem.
  const uint64_t first = std::hash<std::string>()(GetParam().text) % 1000;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const emulator::Report report = call.run(seed);
    EXPECT_EQ(report.fault, "") << "seed " << seed;
    // Where inputs are finite nothing is made again pair by pair. Behind a seqused_k there is NaN.
    if (!call.kernels().problem.has_seqused_k) {
      EXPECT_FALSE(report.files.contains("exact.cuh")) << "seed " << seed;
    }
  }
}

// What a bias of -inf hides may be NaN, in a tile that is taken relative to the reference as in one
// of rows that have seen nothing yet, whose last keys are all hidden.
TEST(EmulatedBias, HidesWhatIsNotANumber) {
  EmulatedCall call("fwd b1 sq150 sk264 h1 d128 bf16 bias:hqk:bf16 lse", [](test::Call& args) {
    const double infinity = std::numeric_limits<double>::infinity();
    for (const int64_t key : {60, 130, 200}) {
      args.k.set({0, key, 0, 3}, std::numeric_limits<double>::quiet_NaN());
      args.v.set({0, key, 0, 5}, infinity);
      for (int64_t row = 0; row < 150; ++row) args.bias.set({0, 0, row, key}, -infinity);
    }
    for (int64_t row = 0; row < 20; ++row)
      for (int64_t key = 100; key < 264; ++key) args.bias.set({0, 0, row, key}, -infinity);
  });
  for (uint64_t seed = 1; seed <= 2; ++seed) EXPECT_EQ(call.run(seed).fault, "") << seed;
}

// Of the rows of one tile that several heads have, those of a query that sees the key are NaN, the
// others what they are without it.
TEST(EmulatedPacking, HidesValuesThatAreNotFinite) {
  EmulatedCall call("fwd b1 sq9 sk200 hq8 hkv1 d64 bf16 causal lse", [](test::Call& args) {
    args.v.set({0, 196, 0, 5}, std::numeric_limits<double>::quiet_NaN());
    args.v.set({0, 199, 0, 6}, std::numeric_limits<double>::infinity());
  });
  ASSERT_EQ(call.kernels().config.num_packed_heads, 4);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const emulator::Report report = call.run(seed);
    EXPECT_EQ(report.fault, "") << seed;
    EXPECT_TRUE(report.files.contains("exact.cuh")) << seed;
  }
}

// Results too wide for consumers to make again themselves: another warp does.
TEST(EmulatedWideRows, HideValuesThatAreNotFinite) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(),
                   kInfinity = std::numeric_limits<double>::infinity();
  EmulatedCall call("fwd b2 sq140 sk190 h1 d256 bf16 seqused_q seqused_k window:60,0 sink lse",
                    [&](test::Call& args) {
                      args.v.set({0, 50, 0, 5}, kNaN);
                      args.v.set({1, 70, 0, 201}, kInfinity);
                      args.v.set({1, 20, 0, 255}, -kInfinity);
                    });
  for (const auto& report : {call.run(1, 1), call.run(2)}) {  // item after item; two at a time
    EXPECT_EQ(report.fault, "");
    EXPECT_TRUE(report.files.contains("exact.cuh"));
  }
}

INSTANTIATE_TEST_SUITE_P(Listed, EmulatedProblems, ::testing::ValuesIn(selected()),
                         [](const auto& row) {
                           return test::named_after(row.param.text, row.index);
                         });

}  // namespace
}  // namespace sirdar::emulator_tests
