// Which bias of the Hopper forward comes by TMA.
#include <gtest/gtest.h>

#include <sirdar/sirdar.hpp>

#include "cuda/sm90/arguments.h"
#include "cuda/sm90/forward/choose.h"
#include "support/call.h"
#include "support/fake_driver.h"
#include "support/scratch.h"

namespace sirdar::sm90 {
namespace {

int stages(const std::string& terms, bool may_stage_bias = true) {
  const Problem problem = Problem::parse("fwd b2 s256 h2 bf16 " + terms).value();
  return choose_config(problem, may_stage_bias).num_stages_bias;
}

TEST(CudaBias, ComesByTmaWhereEveryPairHasAnEntryOf16Bits) {
  EXPECT_EQ(stages("d128 bias:bhqk:bf16"), 1);
  EXPECT_EQ(stages("d128 bias:qk:bf16"), 1);
  EXPECT_EQ(stages("d64 bias:hqk:fp16 causal"), 2);
  EXPECT_EQ(stages("d128 bias:bhqk:fp32"), 0);
  EXPECT_EQ(stages("d128 bias:hk:bf16"), 0);
  EXPECT_EQ(stages("d256 bias:bhqk:bf16"), 0);
  EXPECT_EQ(stages("d128 bias:bhqk:bf16", false), 0);
}

TEST(CudaBias, ReachOfTmaIsAMatterOfStrides) {
  test::Call call("fwd b1 s64 h2 d64 bf16 bias:hqk:bf16");
  Args args = call.args();
  alignas(16) static uint16_t memory[2 * 64 * 80];
  args.bias = TensorView::strided(memory, DType::bf16, {1, 2, 64, 64}, {0, 64 * 80, 80, 1});
  EXPECT_TRUE(check_bias_reach(args).ok());
  args.bias.stride[1] = 0;  // one for all heads
  EXPECT_TRUE(check_bias_reach(args).ok());
  args.bias.stride[2] = 73;
  EXPECT_FALSE(check_bias_reach(args).ok());
  args.bias.stride[2] = 0;
  EXPECT_FALSE(check_bias_reach(args).ok());
  args.bias = TensorView::strided(memory, DType::bf16, {1, 2, 64, 64}, {0, 64 * 80, 1, 80});
  EXPECT_FALSE(check_bias_reach(args).ok());
}

// Where it does not reach the consumers read the bias, in a kernel with one map less.
TEST(CudaBias, IsReadFromMemoryWhereTmaDoesNotReach) {
  JitOptions options;
  options.nvrtc = testing::nvrtc_folder();
  if (options.nvrtc.empty()) {
    GTEST_SKIP() << "NOT TESTED: no NVRTC in .venv; ./dev setup installs it";
  }
  const testing::Scratch dir;
  options.cache_dir = dir / "cache";
  set_jit_options(options);
  testing::FakeDriver fake;
  {
    test::Call call("fwd b1 s64 h2 d64 bf16 bias:qk:bf16");
    alignas(16) static uint16_t memory[4][64 * 2 * 64];
    Args args = call.args();
    size_t n = 0;
    for (TensorView* view : {&args.q, &args.k, &args.v, &args.out})
      *view = TensorView::contiguous(memory[n++], DType::bf16, {1, 64, 2, 64});
    args.bias.stride[2] = 67;
    alignas(16) static uint16_t bias[64 * 67];
    args.bias.data = bias;
    PlanOptions own;  // the caller's knobs stay, and with them what the plan asked for
    own.knobs = {{"num_consumers", "3"}};
    for (const PlanOptions& chosen : {PlanOptions{}, own}) {
      const Result<Plan> plan = Plan::create(call.problem, chosen, Device::cuda(0).value());
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      const Status status = plan.value().run(args);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
  set_jit_options({});
  ASSERT_EQ(fake.launches.size(), 2u);
  EXPECT_EQ(fake.launches[0].record.block_x, 384u);
  EXPECT_EQ(fake.launches[1].record.block_x, 512u);
  EXPECT_EQ(fake.tensor_maps.size(), 8u);
}

}  // namespace
}  // namespace sirdar::sm90
