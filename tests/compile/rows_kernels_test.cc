// Kernels of cuda.rows.forward and cuda.rows.backward compile for several generations, without
// spills.
#include <gtest/gtest.h>

#include "cuda/rows/backward/backward.h"
#include "cuda/rows/forward/forward.h"
#include "jit/compiler.h"
#include "jit/jit.h"

namespace sirdar::rows {
namespace {

struct Case {
  const char *problem, *arch;
  int most_registers;
};

class RowsKernels : public ::testing::TestWithParam<Case> {};

TEST_P(RowsKernels, DoNotSpill) {
  if (const auto found = jit::find_compiler({}); !found.ok()) {
    GTEST_SKIP() << found.status().message();
  }
  const Problem problem = Problem::parse(GetParam().problem).value();
  const Device device = Device::named("h200").value();
  const Implementation& rows = problem.op == Op::forward ? kForward : kBackward;
  const Result<Config> config = rows.configure(problem, device, {});
  ASSERT_TRUE(config.ok()) << config.status().message();
  const auto sources = rows.kernels(problem, config.value());
  for (const KernelSource& source : sources.value()) {
    const Result<jit::CompiledKernelPtr> kernel =
        jit::compile(source, GetParam().arch, problem.str());
    ASSERT_TRUE(kernel.ok()) << kernel.status().message();
    EXPECT_EQ(kernel.value()->report.spill_store_bytes, 0) << source.entry;
    EXPECT_LE(kernel.value()->report.registers, GetParam().most_registers) << source.entry;
  }
}

constexpr const char* kEverything =
    "fwd b2 s64 h4 d300 fp16 bias dropout:0.1 mask document score_mod:\"score * 2.0\"";
constexpr const char* kAllOfBackward =
    "bwd b2 s64 h4 d300 fp16 bias:qk dbias sink dsink dropout:0.1 mask document "
    "score_mod:\"score * score + t[q_pos - k]\" tensor:t:fp32:1:grad";

INSTANTIATE_TEST_SUITE_P(Some, RowsKernels,
                         ::testing::Values(Case{"fwd b2 s64 h4 d128 bf16 causal", "sm_90a", 80},
                                           Case{"fwd b2 s64 h4 d100 fp32 dropout:0.1", "sm_80", 80},
                                           Case{"fwd sq1 sk4096 hq8 hkv2 d128 bf16 paged64",
                                                "sm_75", 80},
                                           Case{kEverything, "sm_90a", 128},
                                           Case{"bwd b2 s64 h4 d128 bf16 causal", "sm_90a", 128},
                                           Case{"bwd b2 s64 h4 d64 fp32 dropout:0.1", "sm_75", 128},
                                           Case{kAllOfBackward, "sm_90a", 255}));

}  // namespace
}  // namespace sirdar::rows
