// The kernels of cuda.sm90.backward compile within their budgets: no spill in a loop, the registers
// that setmaxnreg moves, shared memory, no product that the assembler serialises or drops.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "compile/machine_code.h"
#include "cuda/sm90/backward/backward.h"
#include "jit/compiler.h"
#include "jit/jit.h"
#include "support/knobs.h"

namespace sirdar::test {
namespace {

struct BackwardBudget {
  std::string problem;
  int shared_bytes, num_products;
};

std::vector<BackwardBudget> budgets() {
  std::ifstream file(std::string(SIRDAR_TEST_DIR) + "/golden/backward_kernels.tsv");
  std::vector<BackwardBudget> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    BackwardBudget row;
    std::getline(std::istringstream(line), row.problem, '\t');
    std::istringstream numbers(line.substr(row.problem.size()));
    numbers >> row.shared_bytes >> row.num_products;
    EXPECT_TRUE(numbers) << line;
    rows.push_back(row);
  }
  return rows;
}

class BackwardKernels : public ::testing::TestWithParam<BackwardBudget> {};

TEST_P(BackwardKernels, KeepTheirBudgets) {
  if (const auto found = jit::find_compiler({}); !found.ok()) {
    GTEST_SKIP() << found.status().message();
  }
  const BackwardBudget& budget = GetParam();
  const auto [text, options] = with_knobs(budget.problem);
  const Problem problem = Problem::parse(text).value();
  const Device device = Device::named("h200").value();
  const Result<Config> config = sm90::kBackward.configure(problem, device, options);
  ASSERT_TRUE(config.ok()) << config.status().message();
  const auto sources = sm90::kBackward.kernels(problem, config.value());
  for (const KernelSource& source : sources.value()) {
    const Result<jit::CompiledKernelPtr> kernel = jit::compile(source, "sm_90a", problem.str());
    ASSERT_TRUE(kernel.ok()) << kernel.status().message();
    const jit::CompileReport& report = kernel.value()->report;
    EXPECT_TRUE(report.remarks.empty()) << report.remarks.front();
    EXPECT_LE(report.spill_store_bytes, source.spill_bytes_known) << source.entry;
    if (source.function != "backward" && source.function != "modified_backward") continue;
    EXPECT_EQ(report.registers, 65536 / report.threads / 8 * 8);
    EXPECT_EQ(report.shared_bytes, budget.shared_bytes);
    EXPECT_EQ(num_products(kernel.value()->cubin, report.entry), budget.num_products);
  }
}

INSTANTIATE_TEST_SUITE_P(Budgets, BackwardKernels, ::testing::ValuesIn(budgets()),
                         [](const auto& row) {
                           std::string name = row.param.problem;
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace sirdar::test
