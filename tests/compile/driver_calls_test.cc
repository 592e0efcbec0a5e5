// What a repeated call asks of the driver, on one that does nothing. A launch costs the host some
// microseconds and the rest little, but every call pays for it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>

#include <sirdar/sirdar.hpp>

#include "cuda/sm90/forward/arguments.h"
#include "jit/compiler.h"
#include "support/fake_driver.h"

namespace sirdar::test {
namespace {

using Calls = std::vector<std::string>;

// One sequence of 128 rows, two heads 64 wide, as TMA wants tensors.
struct Memory {
  alignas(64) std::array<uint16_t, 8 * 128 * 2 * 64> elements{};
  alignas(64) std::array<float, 2 * 128> lse{};
  alignas(64) std::array<std::byte, 1 << 20> workspace{};

  TensorView tensor(size_t n) {
    return TensorView::contiguous(&elements[n * 128 * 2 * 64], DType::bf16, {1, 128, 2, 64});
  }
};

struct Runs {
  explicit Runs(const std::string& text)
      : plan(Plan::create(Problem::parse(text).value(), {}, Device::cuda(0).value()).value()) {
    args.q = memory->tensor(0), args.k = memory->tensor(1), args.v = memory->tensor(2);
    args.out = memory->tensor(3);
    if (plan.problem().op == Op::backward) {
      args.lse = TensorView::contiguous(memory->lse.data(), DType::fp32, {1, 2, 128});
      args.dout = memory->tensor(4);
      args.dq = memory->tensor(5), args.dk = memory->tensor(6), args.dv = memory->tensor(7);
    }
    EXPECT_LE(plan.workspace_bytes(), sizeof(memory->workspace));
    args.workspace = memory->workspace.data();
    args.workspace_bytes = plan.workspace_bytes();
  }
  // What a run asks of the driver, but for what only a driver that tests install is asked.
  Calls run(testing::FakeDriver& fake, Stream stream = nullptr) const {
    fake.calls.clear();
    const Status status = plan.run(args, stream);
    EXPECT_TRUE(status.ok()) << status.message();
    std::erase_if(fake.calls,
                  [](const auto& name) { return name == "init" || name == "driver_version"; });
    return fake.calls;
  }
  Calls third_run(testing::FakeDriver& fake, Stream stream = nullptr) const {
    run(fake, stream), run(fake, stream);
    return run(fake, stream);
  }

  std::unique_ptr<Memory> memory = std::make_unique<Memory>();
  Plan plan;
  Args args;
};

const std::string kFull = "fwd b1 s128 h2 d64 bf16", kCausal = kFull + " causal";

TEST(DriverCalls, OfRepeatedCallsAreFew) {
  if (const auto found = jit::find_compiler({}); !found.ok()) {
    GTEST_SKIP() << found.status().message();
  }
  testing::FakeDriver fake;
  fake.stack = {testing::FakeDriver::context(0)};
  int handle = 0;
  fake.streams[&handle] = testing::FakeDriver::context(0);
  const Calls one = {"context_get", "context_device", "launch"};
  const Runs full(kFull);
  EXPECT_EQ(full.third_run(fake), one);
  EXPECT_EQ(full.third_run(fake, &handle),
            (Calls{"stream_context", "context_get", "context_device", "launch"}));
  EXPECT_EQ(Runs(kCausal).third_run(fake), one);
  EXPECT_EQ(Runs("bwd b1 s128 h2 d64 bf16").third_run(fake),
            (Calls{"context_get", "context_device", "launch", "launch", "launch"}));
}

// The kernel has counters of its own for so many workspaces; those of others are cleared.
TEST(DriverCalls, ClearTheWorkspaceWhereTheKernelHasNoCounters) {
  if (const auto found = jit::find_compiler({}); !found.ok()) {
    GTEST_SKIP() << found.status().message();
  }
  testing::FakeDriver fake;
  fake.stack = {testing::FakeDriver::context(0)};
  Runs causal(kCausal);
  size_t cleared = 0;
  for (int n = 0; n < sm90::kMostWorkspaces + 2; ++n) {
    causal.args.workspace = &causal.memory->workspace[static_cast<size_t>(64 * n)];
    const Calls calls = causal.run(fake);
    cleared += static_cast<size_t>(std::count(calls.begin(), calls.end(), "memset32"));
  }
  EXPECT_EQ(cleared, 2u);
  causal.args.workspace = causal.memory->workspace.data();
  const Calls again = causal.run(fake);
  EXPECT_EQ(std::count(again.begin(), again.end(), "memset32"), 0);
}

}  // namespace
}  // namespace sirdar::test
