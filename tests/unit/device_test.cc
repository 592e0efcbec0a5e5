// Device facts: recorded machines, and reading this one from texts of other machines.
#include "core/device.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace sirdar {
namespace {

namespace fs = std::filesystem;

class Cgroup : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "sirdar_cgroup_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const fs::path& file, std::string_view text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  fs::path root_;
};

TEST_F(Cgroup, TheTightestQuotaOnThePathCounts) {
  EXPECT_EQ(cgroup_cpus(root_, "0::/a/b\n"), 0);
  write("cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpus(root_, "0::/a/b\n"), 0);
  write("a/cpu.max", "150000 100000\n");
  EXPECT_EQ(cgroup_cpus(root_, "0::/a/b\n"), 2) << "rounded up";
  write("a/b/cpu.max", "800000 100000\n");
  EXPECT_EQ(cgroup_cpus(root_, "0::/a/b\n"), 2);
  EXPECT_EQ(cgroup_cpus(root_, "0::/other\n"), 0);
}

TEST_F(Cgroup, VersionOneIsRead) {
  write("cpu/x/cpu.cfs_quota_us", "-1\n");
  write("cpu/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpus(root_, "4:cpu,cpuacct:/x\n"), 0);
  write("cpu/x/cpu.cfs_quota_us", "300000\n");
  EXPECT_EQ(cgroup_cpus(root_, "4:cpu,cpuacct:/x\n"), 3);
  EXPECT_EQ(cgroup_cpus(root_, "4:cpuset:/x\n"), 0);
}

TEST_F(Cgroup, NonsenseIsNoLimit) {
  write("cpu.max", "zero\n");
  EXPECT_EQ(cgroup_cpus(root_, "0::/\n"), 0);
  write("cpu.max", "100000 0\n");
  EXPECT_EQ(cgroup_cpus(root_, "0::/\n:::\nrubbish"), 0);
  write("cpu.max", "-5 100000\n");
  EXPECT_EQ(cgroup_cpus(root_, "0::/\n"), 0);
}

TEST(DeviceFacts, CacheSizes) {
  EXPECT_EQ(parse_cache_size("48K\n"), 48 << 10);
  EXPECT_EQ(parse_cache_size("2M"), 2 << 20);
  for (const std::string_view text : {"", "K", "48", "48G", "-1K", "0K"})
    EXPECT_EQ(parse_cache_size(text), 0) << text;
}

TEST(DeviceFacts, NumThreads) {
  EXPECT_EQ(parse_num_threads("1"), 1);
  EXPECT_EQ(parse_num_threads("4096"), 4096);
  for (const std::string_view text : {"", "0", "-1", "4097", "2x", " 2", "99999999999999999999"})
    EXPECT_FALSE(parse_num_threads(text).has_value()) << text;
}

TEST(DeviceFacts, TheEnvironmentSetsTheThreadsOfTheHost) {
  ::setenv("SIRDAR_NUM_THREADS", "7", 1);
  EXPECT_EQ(Device::host().num_threads, 7);
  ::setenv("SIRDAR_NUM_THREADS", "many", 1);
  EXPECT_GE(Device::host().num_threads, 1);
  ::unsetenv("SIRDAR_NUM_THREADS");
  EXPECT_GE(Device::host().num_threads, 1);
  EXPECT_GT(Device::host().l1d_bytes, 0);
  EXPECT_GT(Device::host().l2_bytes, 0);
}

TEST(DeviceFacts, RecordedMachines) {
  EXPECT_EQ(Device::named("h200").value().arch, 90);
  EXPECT_EQ(Device::named("h200").value().smem_bytes, 232448);
  EXPECT_EQ(Device::named("a100").value().arch, 80);
  EXPECT_EQ(Device::named("zen4").value().isa, Isa::avx512_bf16);
  EXPECT_EQ(Device::named("scalar").value().isa, Isa::scalar);
  EXPECT_TRUE(Device::named("host").ok());
  const Status status = Device::named("h20").status();
  EXPECT_EQ(status.argument(), "device");
  EXPECT_NE(status.message().find("did you mean"), std::string::npos) << status.message();
}

TEST(DeviceFacts, InstructionSets) {
  EXPECT_EQ(parse_isa("avx512_bf16").value(), Isa::avx512_bf16);
  EXPECT_EQ(parse_isa("sse").status().argument(), "isa");
  EXPECT_TRUE(isa_runs_on(Isa::avx2, Isa::avx512_bf16));
  EXPECT_TRUE(isa_runs_on(Isa::scalar, Isa::neon));
  EXPECT_TRUE(isa_runs_on(Isa::neon, Isa::neon));
  EXPECT_FALSE(isa_runs_on(Isa::neon, Isa::avx512));
  EXPECT_FALSE(isa_runs_on(Isa::avx2, Isa::neon));
  EXPECT_FALSE(isa_runs_on(Isa::avx512, Isa::avx2));
}

}  // namespace
}  // namespace sirdar
