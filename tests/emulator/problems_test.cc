// The library's Hopper forward on the emulated machine, for every kind of problem that it takes.
#include <fmt/format.h>
#include <gtest/gtest.h>

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
  for (uint64_t seed = first; seed < first + seeds; ++seed)
    EXPECT_EQ(call.run(seed).fault, "") << "seed " << seed;
}

INSTANTIATE_TEST_SUITE_P(Listed, EmulatedProblems, ::testing::ValuesIn(selected()),
                         [](const auto& row) {
                           return test::named_after(row.param.text, row.index);
                         });

}  // namespace
}  // namespace sirdar::emulator_tests
