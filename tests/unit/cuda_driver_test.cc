// Devices, kernels and launches, as a driver sees them, without a GPU.
#include <gtest/gtest.h>

#include <cstring>

#include "cuda/context.h"
#include "cuda/launch.h"
#include "support/fake_driver.h"
#include "support/scratch.h"

namespace sirdar::cuda {
namespace {

using sirdar::testing::FakeDriver;
using sirdar::testing::Scratch;

template <class T>
void expect_says(const T& result, StatusCode code, std::initializer_list<std::string_view> parts) {
  Status status;
  if constexpr (std::is_same_v<T, Status>)
    status = result;
  else
    status = result.status();
  EXPECT_EQ(status.code(), code) << status.message();
  for (const std::string_view part : parts)
    EXPECT_NE(status.message().find(part), std::string::npos) << part << "\n" << status.message();
}

TEST(CudaDriver, IsMissingWithAReason) {
  if (driver().ok()) GTEST_SKIP() << "there is a driver here";
  expect_says(driver(), StatusCode::device_error, {"driver: ", "libcuda.so.1"});
  expect_says(Device::cuda(0), StatusCode::device_error, {"libcuda.so.1"});
  expect_says(Device::named("cuda:1"), StatusCode::device_error, {"libcuda.so.1"});
}

TEST(CudaDriver, IsRefusedWhereItIsTooOldOrSeesNoGpu) {
  FakeDriver fake;
  fake.version = 11080;
  expect_says(driver(), StatusCode::device_error, {"CUDA 11.8", "CUDA 12.0", "update"});
  fake.version = 12040;
  fake.errors["init"] = 100;
  expect_says(driver(), StatusCode::device_error, {"cuInit", "CUDA_VISIBLE_DEVICES"});
  fake.errors.clear();
  EXPECT_TRUE(driver().ok());
  fake.num_devices = 0;
  expect_says(Device::cuda(0), StatusCode::invalid_argument, {"no GPU"});
}

TEST(CudaDriver, NamesItsErrors) {
  const FakeDriver fake;
  const Driver& api = *driver().value();
  EXPECT_EQ(describe(api, 1), "CUDA_ERROR_SOMETHING (what it means)");
  EXPECT_NE(describe(api, 700).find("cannot use the context any more"), std::string::npos);
  EXPECT_EQ(describe(api, 12345), "CUDA error 12345");
  EXPECT_EQ(check(api, 2, "x").code(), StatusCode::out_of_memory);
  EXPECT_EQ(check(api, 1, "x").code(), StatusCode::device_error);
  EXPECT_TRUE(check(api, 0, "x").ok());
}

TEST(CudaDevice, IsWhatTheDriverTells) {
  FakeDriver fake;
  const Device device = Device::cuda(1).value();
  EXPECT_EQ(device.kind, DeviceKind::cuda);
  EXPECT_EQ(device.name, "NVIDIA H200");
  EXPECT_EQ(device.index, 1);
  EXPECT_EQ(device.arch, 90);
  EXPECT_EQ(device.num_sms, 132);
  EXPECT_EQ(device.smem_bytes, 232448);
  EXPECT_EQ(device.l2_bytes, 50 << 20);
  EXPECT_TRUE(fake.stack.empty());
  EXPECT_EQ(fake.num_retained, 0) << "asking creates no context";
  EXPECT_EQ(Device::named("cuda:1").value().index, 1);
  EXPECT_EQ(Device::named("cuda").value().index, 0);
  expect_says(Device::cuda(2), StatusCode::invalid_argument, {"2 is not from 0 to 1"});
  expect_says(Device::cuda(-1), StatusCode::invalid_argument, {"-1 is not from 0 to 1"});
  expect_says(Device::named("cuda:x"), StatusCode::invalid_argument, {"cuda:x"});
  fake.errors["device_attribute"] = 1;
  expect_says(Device::cuda(0), StatusCode::device_error, {"CUDA_ERROR_SOMETHING"});
}

struct Params {
  int64_t a = 0x1122334455667788;
  int b = 99;
};

class CudaLaunch : public ::testing::Test {
 protected:
  CudaLaunch() {
    auto code = std::make_shared<jit::CompiledKernel>();
    code->report.entry = "sirdar_fwd_test";
    kernel_.device = 1;
    kernel_.threads = 384;
    kernel_.shared_bytes = 200000;
    kernel_.handle = reinterpret_cast<CuKernel>(uintptr_t{0x200});
    kernel_.code = code;
    launch_.kernel = &kernel_;
    launch_.grid = {132, 2, 3};
    fake_.param_bytes = sizeof(Params);
  }

  FakeDriver fake_;
  Kernel kernel_;
  Launch launch_;
};

TEST_F(CudaLaunch, HandsOverGridBlockSharedMemoryAndParameters) {
  fake_.stack = {FakeDriver::context(1)};
  const Params params;
  ASSERT_TRUE(launch(launch_, params, nullptr).ok());
  ASSERT_EQ(fake_.launches.size(), 1u);
  const auto& seen = fake_.launches[0];
  EXPECT_EQ(seen.record.grid_x, 132u);
  EXPECT_EQ(seen.record.grid_y, 2u);
  EXPECT_EQ(seen.record.grid_z, 3u);
  EXPECT_EQ(seen.record.block_x, 384u);
  EXPECT_EQ(seen.record.block_y, 1u);
  EXPECT_EQ(seen.record.block_z, 1u);
  EXPECT_EQ(seen.record.shared_bytes, 200000u);
  EXPECT_EQ(seen.record.stream, nullptr);
  EXPECT_TRUE(seen.attributes.empty());
  EXPECT_EQ(seen.function, reinterpret_cast<CuFunction>(uintptr_t{0x200}));
  EXPECT_EQ(std::memcmp(seen.params.data(), &params, sizeof(params)), 0);
  EXPECT_EQ(std::count(fake_.calls.begin(), fake_.calls.end(), "context_push"), 0);
}

TEST_F(CudaLaunch, AsksForClustersAndEarlyStartOnlyWhereWanted) {
  launch_.cluster = {2, 1, 1};
  launch_.is_programmatic = true;
  ASSERT_TRUE(launch(launch_, Params{}, nullptr).ok());
  const auto& attributes = fake_.launches[0].attributes;
  ASSERT_EQ(attributes.size(), 2u);
  EXPECT_EQ(attributes[0].id, attribute::kClusterDimension);
  EXPECT_EQ(attributes[0].value.cluster.x, 2u);
  EXPECT_EQ(attributes[0].value.cluster.y, 1u);
  EXPECT_EQ(attributes[0].value.cluster.z, 1u);
  EXPECT_EQ(attributes[1].id, attribute::kProgrammatic);
  EXPECT_EQ(attributes[1].value.is_programmatic, 1);
}

TEST_F(CudaLaunch, LeavesTheCurrentContextAsItWas) {
  // None at all, then one of another device: the plan's device gets the launch.
  for (const std::vector<CuContext>& before :
       {std::vector<CuContext>{}, std::vector<CuContext>{FakeDriver::context(0)}}) {
    fake_.stack = before;
    ASSERT_TRUE(launch(launch_, Params{}, nullptr).ok());
    EXPECT_EQ(fake_.launches.back().context, FakeDriver::context(1));
    EXPECT_EQ(fake_.stack, before);
    EXPECT_EQ(fake_.num_retained, 0);
  }
  // The same after an error.
  fake_.errors["launch"] = 1;
  EXPECT_FALSE(launch(launch_, Params{}, nullptr).ok());
  EXPECT_EQ(fake_.stack, std::vector<CuContext>{FakeDriver::context(0)});
  EXPECT_EQ(fake_.num_retained, 0);
}

TEST_F(CudaLaunch, RunsInTheContextOfItsStream) {
  int mine = 0, others = 0;
  const auto own = reinterpret_cast<CuContext>(uintptr_t{0x2001});  // of device 1, not primary
  fake_.streams = {{&mine, own}, {&others, FakeDriver::context(0)}};
  fake_.stack = {FakeDriver::context(0)};
  ASSERT_TRUE(launch(launch_, Params{}, &mine).ok());
  EXPECT_EQ(fake_.launches[0].context, own);
  EXPECT_EQ(static_cast<void*>(fake_.launches[0].record.stream), &mine);
  EXPECT_EQ(fake_.stack, std::vector<CuContext>{FakeDriver::context(0)});

  expect_says(launch(launch_, Params{}, &others), StatusCode::invalid_argument,
              {"stream: ", "device 0", "device 1"});
  int unknown = 0;
  expect_says(launch(launch_, Params{}, &unknown), StatusCode::device_error, {"stream: "});
  EXPECT_EQ(fake_.launches.size(), 1u);
  EXPECT_EQ(fake_.stack, std::vector<CuContext>{FakeDriver::context(0)});
}

TEST_F(CudaLaunch, FailsWithTheDriversNameAndTheLaunch) {
  Problem problem;
  problem.seqlen_q = problem.seqlen_k = 64;
  launch_.problem = &problem;
  launch_.cluster = {2, 1, 1};
  fake_.errors["launch"] = 700;
  expect_says(launch(launch_, Params{}, nullptr), StatusCode::device_error,
              {"sirdar_fwd_test", "grid 132 x 2 x 3", "clusters of 2 x 1 x 1", "384 threads",
               "200000 bytes", problem.str(), "CUDA_ERROR_ILLEGAL_ADDRESS"});
  fake_.errors["launch"] = 2;
  expect_says(launch(launch_, Params{}, nullptr), StatusCode::out_of_memory, {"OUT_OF_MEMORY"});
  fake_.errors = {{"context_push", 201}};
  expect_says(launch(launch_, Params{}, nullptr), StatusCode::device_error, {"cuCtxPushCurrent"});
  EXPECT_EQ(fake_.num_retained, 0);
}

class CudaKernel : public ::testing::Test {
 protected:
  void SetUp() override {
    JitOptions options;
    options.nvrtc = sirdar::testing::nvrtc_folder();
    if (options.nvrtc.empty())
      GTEST_SKIP() << "NOT TESTED: no NVRTC in .venv; ./dev setup installs it";
    options.cache_dir = dir_ / "cache";
    options.kernel_dir = dir_ / "src";
    set_jit_options(options);
    source_ = sirdar::testing::tiny_kernel(dir_ / "src");
  }
  void TearDown() override { set_jit_options({}); }

  Scratch dir_;
  FakeDriver fake_;
  KernelSource source_;
};

TEST_F(CudaKernel, IsLoadedOncePerDeviceAndUnloadedWithItsLastUser) {
  const Device first = Device::cuda(0).value(), second = Device::cuda(1).value();
  {
    const KernelPtr a = load_kernel(source_, first, "fwd").value();
    const KernelPtr b = load_kernel(source_, first, "fwd").value();
    EXPECT_EQ(a, b);
    EXPECT_EQ(fake_.num_libraries, 1);
    const KernelPtr c = load_kernel(source_, second, "fwd").value();
    EXPECT_EQ(fake_.num_libraries, 2);
    EXPECT_EQ(c->device, 1);
    EXPECT_EQ(c->threads, 128);
    EXPECT_EQ(fake_.dynamic_shared_bytes, 3072);
    EXPECT_EQ(c->entry(), "sirdar_tiny");
  }
  EXPECT_EQ(fake_.num_libraries, 0);
  EXPECT_TRUE(fake_.stack.empty());
  EXPECT_EQ(fake_.num_retained, 0);
}

TEST_F(CudaKernel, IsRefusedWithAReasonAndNothingStays) {
  const Device device = Device::cuda(0).value();
  fake_.errors["library_load"] = 200;
  expect_says(load_kernel(source_, device, "fwd"), StatusCode::device_error,
              {"sirdar_tiny", "sm_90a", "NVRTC 13", "CUDA 13.0", "Update the driver"});
  fake_.errors = {{"kernel_set", 1}};
  expect_says(load_kernel(source_, device, "fwd"), StatusCode::device_error,
              {"3072 bytes of shared memory", "NVIDIA H200"});
  fake_.errors = {{"kernel_function", 2}};
  expect_says(load_kernel(source_, device, "fwd"), StatusCode::out_of_memory, {"loading"});
  EXPECT_EQ(fake_.num_libraries, 0);
  EXPECT_TRUE(fake_.stack.empty());
  fake_.errors.clear();
  EXPECT_TRUE(load_kernel(source_, device, "fwd").ok());
  expect_says(load_kernel(source_, Device::host(), "fwd"), StatusCode::unsupported, {"a CPU"});
  // A plan for a recorded machine, run where there is another.
  fake_.major = 8;
  expect_says(load_kernel(source_, device, "fwd"), StatusCode::device_error,
              {"NVIDIA H200 (sm_90)", "sm_80", "Device::cuda(0)"});
}

}  // namespace
}  // namespace sirdar::cuda
