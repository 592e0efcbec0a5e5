// The kernels of cuda.sm90.forward that models ask for compile within their budgets: registers,
// spills, shared memory, no wgmma that the assembler serialises, and the schedule of the guarded
// loop.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "compile/machine_code.h"
#include "jit/compiler.h"
#include "jit/jit.h"
#include "plan/implementation.h"
#include "support/scratch.h"

namespace sirdar::test {
namespace {

struct Budget {
  std::string problem;
  int spill_bytes, shared_bytes, num_exponentials, num_reusing;
};

std::vector<Budget> budgets() {
  std::ifstream file(std::string(SIRDAR_TEST_DIR) + "/golden/forward_kernels.tsv");
  std::vector<Budget> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    Budget row;
    std::getline(std::istringstream(line), row.problem, '\t');
    std::istringstream numbers(line.substr(row.problem.size()));
    numbers >> row.spill_bytes >> row.shared_bytes >> row.num_exponentials >> row.num_reusing;
    EXPECT_TRUE(numbers) << line;
    rows.push_back(row);
  }
  return rows;
}

Result<jit::CompiledKernelPtr> compile(const Problem& problem, KernelSource& source) {
  std::vector<Refusal> refusals;
  const Device device = Device::named("h200").value();
  PlanOptions options;
  options.implementation = "cuda.sm90.forward";
  for (const Implementation* one : implementations()) {
    if (one->name != options.implementation) continue;
    const Result<Config> config = one->configure(problem, device, options);
    if (!config.ok()) return config.status();
    const Result<std::vector<KernelSource>> sources = one->kernels(problem, config.value());
    if (!sources.ok()) return sources.status();
    source = sources.value().back();  // a mask of the caller's has a kernel before
    return jit::compile(source, "sm_90a", problem.str());
  }
  return Status(StatusCode::internal, "cuda.sm90.forward is not registered");
}

// The dearest takes 1.6 s of CPU time on a core of its own (src/cuda/sm90/forward/README.md).
constexpr int kMostCpuMs = 4000;

class ForwardKernels : public ::testing::TestWithParam<Budget> {};

TEST_P(ForwardKernels, KeepTheirBudgets) {
  if (const auto found = jit::find_compiler({}); !found.ok()) {
    GTEST_SKIP() << found.status().message();
  }
  const Budget& budget = GetParam();
  const Result<Problem> problem = Problem::parse(budget.problem);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  KernelSource source;
  const Result<jit::CompiledKernelPtr> kernel = compile(problem.value(), source);
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  const jit::CompileReport& report = kernel.value()->report;
  EXPECT_TRUE(report.remarks.empty()) << report.remarks.front();
  EXPECT_LE(report.spill_store_bytes, budget.spill_bytes);
  EXPECT_LE(budget.spill_bytes, source.spill_bytes_known);
  EXPECT_EQ(report.shared_bytes, budget.shared_bytes);
  EXPECT_LT(report.cpu_ms, kMostCpuMs);
  // All of the register file, shared out evenly before setmaxnreg moves it; blocks of one consumer
  // move none.
  if (source.config_text.find(".moves_registers = true") != std::string::npos) {
    EXPECT_EQ(report.registers, 65536 / report.threads / 8 * 8);
  }

  const std::vector<GuardedLoop> loops = guarded_loops(kernel.value()->cubin, report.entry);
  if (budget.num_exponentials == 0) return;
  ASSERT_FALSE(loops.empty());
  EXPECT_EQ(loops[0].num_exponentials, budget.num_exponentials);
  EXPECT_GE(loops[0].num_reusing, budget.num_reusing);
  EXPECT_EQ(loops[0].num_early_waits, 0);
}

// 20 ms are promised; a busy machine takes longer.
TEST(KernelsOnDisk, AreFoundQuickly) {
  if (const auto found = jit::find_compiler({}); !found.ok()) {
    GTEST_SKIP() << found.status().message();
  }
  const testing::Scratch dir;
  JitOptions options;
  options.cache_dir = dir / "cache";
  testing::ScopedJitOptions scope(options);
  const Problem problem = Problem::parse("fwd b2 s1024 h16 d64 bf16").value();
  KernelSource source;
  ASSERT_TRUE(compile(problem, source).ok());
  options.cache_dir += "/.";  // what this process remembers does not count
  set_jit_options(options);
  const auto start = std::chrono::steady_clock::now();
  const auto kernel = compile(problem, source);
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  EXPECT_EQ(kernel.value()->origin, jit::Origin::cache);
  EXPECT_LT(taken.count(), 500);
}

INSTANTIATE_TEST_SUITE_P(Budgets, ForwardKernels, ::testing::ValuesIn(budgets()),
                         [](const auto& row) {
                           std::string name = row.param.problem;
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace sirdar::test
