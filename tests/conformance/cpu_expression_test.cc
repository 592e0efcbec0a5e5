// Problems with expressions on every instruction set of the machine, judged against float64 on
// hostile data.
#include <gtest/gtest.h>

#include <fstream>

#include "check/run_check.h"
#include "cpu/dispatch.h"

namespace sirdar {
namespace {

std::vector<std::string> problems() {
  std::ifstream file(SIRDAR_TEST_DIR "/conformance/corpus/expressions.txt");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.front() != '#') lines.push_back(line);
  }
  return lines;
}

class CpuExpression : public ::testing::TestWithParam<std::string> {};

TEST_P(CpuExpression, IsAttentionOnEveryIsa) {
  const Result<Problem> problem = Problem::parse(GetParam());
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  for (const char* isa : {"scalar", "avx2", "avx512"}) {
    if (!cpu::choose_isa(Device::host(), isa).ok()) continue;
    PlanOptions options;
    options.implementation = "cpu.forward";
    options.isa = isa;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      const check::Report report = check::check(problem.value(), options, seed);
      EXPECT_TRUE(report.ok) << isa << ": " << report.text;
    }
  }
}

TEST(CpuExpressionCorpus, IsThere) { EXPECT_GT(problems().size(), 25u); }

INSTANTIATE_TEST_SUITE_P(Corpus, CpuExpression, ::testing::ValuesIn(problems()));

}  // namespace
}  // namespace sirdar
