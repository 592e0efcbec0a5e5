// Which problems and which calls the row-by-row forward serves, without a GPU.
#include <gtest/gtest.h>

#include <sirdar/sirdar.hpp>

#include "support/call.h"
#include "support/fake_driver.h"
#include "support/scratch.h"

namespace sirdar::rows {
namespace {

Device gpu(int arch) {
  Device device = Device::named("h200").value();
  device.arch = arch;
  return device;
}

Result<Plan> planned(std::string_view text, const Device& device = gpu(90),
                     const PlanOptions& options = {}) {
  return Plan::create(Problem::parse(text).value(), options, device);
}

TEST(CudaRows, ServesWhatTheHopperKernelDoesNot) {
  for (const char* text :
       {"s64 fp32", "s64 d100 bf16", "s64 d512 bf16", "sq1 sk64 d64 bf16 paged16",
        "s64 d64 fp16 dropout:0.1", "s64 d64 bf16 out:fp32", "s64 d1 dv3 fp16 bias document"}) {
    const Result<Plan> plan = planned(text);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan.value().name(), "cuda.rows.forward") << text;
  }
  EXPECT_EQ(planned("s64 d64 bf16").value().name(), "cuda.sm90.forward");
  EXPECT_FALSE(planned("s64 d64 fp8_e4m3").ok());
}

TEST(CudaRows, ServesTheBackward) {
  for (const char* text :
       {"bwd s64 fp32", "bwd s64 d100 bf16 dlse", "bwd s64 d512 fp16 dropout:0.1",
        "bwd s64 d1 dv3 fp16 bias document dbias", "bwd b2 s64 hq4 hkv2 d60 bf16 sink dsink",
        "bwd b2 s64 d64 fp32 ragged:80,90 score_mod:\"score * 2.0\"",
        "bwd s64 fp32 score_mod:\"score * t[h]\" tensor:t:fp32:1:grad"}) {
    const Result<Plan> plan = planned(text);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan.value().name(), "cuda.rows.backward") << text;
  }
  for (const int arch : {70, 75, 80, 89, 100})
    EXPECT_EQ(planned("bwd s64 d64 bf16", gpu(arch)).value().name(), "cuda.rows.backward") << arch;
  EXPECT_FALSE(planned("bwd s64 fp32", gpu(61)).ok());
  PlanOptions options;
  options.knobs = {{"columns", "64"}};
  EXPECT_EQ(planned("bwd s64 fp32", gpu(90), options).status().code(),
            StatusCode::invalid_argument);
}

// 16 bytes of every query row, and what rows or keys leave of dbias; pieces of 256 bytes.
TEST(CudaRows, BackwardWorkspace) {
  const auto bytes = [](std::string_view text) { return planned(text).value().workspace_bytes(); };
  EXPECT_EQ(bytes("bwd b2 s64 h4 fp32"), 2u * 64 * 4 * 16);
  EXPECT_EQ(bytes("bwd b2 sq64 sk32 h4 fp32 bias:k dbias"), 2u * 64 * 4 * 16 + 2 * 32 * 4 * 4);
  EXPECT_EQ(bytes("bwd b2 sq64 sk32 h4 fp32 bias:h dbias"), 2u * 64 * 4 * 20);
  EXPECT_EQ(bytes("bwd b2 sq64 sk32 h4 fp32 bias dbias"), 2u * 64 * 4 * 16);
  EXPECT_EQ(bytes("bwd b2 s64 h4 fp32 ragged_q:70"), 4608u);
  EXPECT_EQ(bytes("bwd b2 sq0 sk32 h4 fp32"), 0u);
  EXPECT_EQ(bytes("bwd b2 s64 h4 fp32 score_mod:\"score * t[h]\" tensor:t:fp32:1:grad"),
            2u * 64 * 4 * 16 + (32u << 20));
}

class CudaRowsRun : public ::testing::Test {
 protected:
  void SetUp() override {
    JitOptions options;
    options.nvrtc = testing::nvrtc_folder();
    if (options.nvrtc.empty()) {
      GTEST_SKIP() << "NOT TESTED: no NVRTC in .venv; ./dev setup installs it";
    }
    options.cache_dir = dir_ / "cache";
    set_jit_options(options);
  }
  void TearDown() override { set_jit_options({}); }

  // The blocks of each launch of a call.
  std::vector<unsigned> blocks_of(const std::string& problem) {
    test::Call call(problem);
    const Result<Plan> plan = Plan::create(call.problem, {}, Device::cuda(0).value());
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    std::vector<std::byte> memory(plan.value().workspace_bytes() + 64);
    Args args = call.args();
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory.data());
    args.workspace = reinterpret_cast<void*>((address + 63) / 64 * 64);
    args.workspace_bytes = plan.value().workspace_bytes();
    fake_.launches.clear();
    const Status status = plan.value().run(args);
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<unsigned> blocks;
    for (const testing::FakeLaunch& one : fake_.launches) blocks.push_back(one.record.grid_x);
    return blocks;
  }

  testing::Scratch dir_;
  testing::FakeDriver fake_;
};

// Rows by eights, then what many rows add to; nothing where there is none.
TEST_F(CudaRowsRun, LaunchesOfABackward) {
  using Blocks = std::vector<unsigned>;
  EXPECT_EQ(blocks_of("bwd b2 sq20 sk12 hq4 hkv2 d32 fp32"), (Blocks{20, 6}));
  EXPECT_EQ(blocks_of("bwd b2 sq20 sk12 hq4 hkv2 d32 fp32 sink dsink bias:hk dbias"),
            (Blocks{20, 6, 48}));
  EXPECT_EQ(blocks_of("bwd b2 sq20 sk12 hq4 hkv2 d32 fp32 bias:qk dbias"), (Blocks{20, 6, 3}));
  EXPECT_EQ(blocks_of("bwd b2 sq0 sk12 hq4 hkv2 d32 fp32"), (Blocks{6}));
  EXPECT_EQ(blocks_of("bwd b2 sq20 sk0 hq4 hkv2 d32 fp32"), (Blocks{20}));
}

TEST(CudaRows, ServesOtherGenerations) {
  for (const int arch : {70, 75, 80, 89, 100}) {
    EXPECT_EQ(planned("s64 d64 bf16", gpu(arch)).value().name(), "cuda.rows.forward") << arch;
  }
  const Result<Plan> old = planned("s64 d64 bf16", gpu(61));
  ASSERT_FALSE(old.ok());
  EXPECT_NE(old.status().message().find("runs on sm_70 and newer"), std::string::npos);
}

TEST(CudaRows, WarpsShareRowsWhereThereAreFew) {
  const auto shares = [](std::string_view text) {
    return planned(text).value().config().find("splits=8") != std::string::npos;
  };
  EXPECT_TRUE(shares("b8 sq1 sk4096 hq32 hkv8 d128 bf16 paged16"));
  EXPECT_FALSE(shares("b8 sq1 sk4096 hq32 hkv8 d128 bf16 paged16 batch_invariant"));
  EXPECT_FALSE(shares("b8 sq1 sk256 hq32 hkv8 d128 bf16 paged16"));
  EXPECT_FALSE(shares("b8 sq64 sk4096 hq32 hkv8 d128 bf16 paged16"));
}

TEST(CudaRows, KnobsThatWouldBeAnotherProblemAreRefused) {
  PlanOptions options;
  options.knobs = {{"splits", "8"}};
  EXPECT_TRUE(planned("s64 fp32", gpu(90), options).ok());
  for (const auto& [name, value] : {std::pair{"splits", "2"}, std::pair{"has_dropout", "true"},
                                    std::pair{"element", "bf16"}, std::pair{"columns", "64k"}}) {
    options.knobs = {{name, value}};
    const Result<Plan> plan = planned("s64 fp32", gpu(90), options);
    EXPECT_EQ(plan.status().code(), StatusCode::invalid_argument) << name;
  }
}

// A call whose strides TMA cannot take is computed all the same, and that is said.
TEST(CudaRows, TakesWhatTmaCannotReach) {
  JitOptions options;
  options.nvrtc = testing::nvrtc_folder();
  if (options.nvrtc.empty()) {
    GTEST_SKIP() << "NOT TESTED: no NVRTC in .venv; ./dev setup installs it";
  }
  const testing::Scratch dir;
  options.cache_dir = dir / "cache";
  set_jit_options(options);
  testing::FakeDriver fake;
  std::string said;
  set_log_sink([&](LogLevel, std::string_view text) { said += text; });
  {
    test::Call call("fwd b1 sq40 sk40 h2 d64 bf16");
    call.v = test::Tensor(DType::bf16, {1, 40, 2, 64}, {0, 131, 65, 1}).fill_random(1);
    const Result<Plan> plan = Plan::create(call.problem, {}, Device::cuda(0).value());
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan.value().name(), "cuda.sm90.forward");
    EXPECT_NE(plan.value().explain().find("cuda.rows.forward"), std::string::npos);
    const Status status = plan.value().run(call.args());
    EXPECT_TRUE(status.ok()) << status.message();
  }
  set_log_sink({});
  set_jit_options({});
  ASSERT_EQ(fake.launches.size(), 1u);
  EXPECT_EQ(fake.launches[0].record.grid_x, 10u);  // 80 rows, 8 to a block
  EXPECT_EQ(fake.launches[0].record.block_x, 256u);
  EXPECT_TRUE(fake.tensor_maps.empty());
  for (const char* part : {"cuda.rows.forward", "slower", "TMA"}) {
    EXPECT_NE(said.find(part), std::string::npos) << part << "\n" << said;
  }
}

}  // namespace
}  // namespace sirdar::rows
