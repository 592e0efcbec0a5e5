// Kernels compiled by NVRTC without a GPU: what is reported, kept, found again and refused.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cstdlib>
#include <thread>

#include "jit/cache.h"
#include "jit/compiler.h"
#include "jit/jit.h"
#include "support/scratch.h"

namespace sirdar::jit {
namespace {

namespace fs = std::filesystem;
using testing::read_text;
using testing::ScopedJitOptions;
using testing::Scratch;
using testing::tiny_kernel;

void expect_says(const Status& status, std::initializer_list<std::string> parts) {
  EXPECT_EQ(status.code(), StatusCode::compile_failed);
  for (const std::string& part : parts)
    EXPECT_NE(status.message().find(part), std::string::npos) << part << "\n" << status.message();
}

// Tests of what needs no compiler.
TEST(JitWithoutCompiler, IsToldWhatToInstall) {
  const Scratch dir;
  JitOptions options;
  options.cache_dir = dir / "cache";
  options.kernel_dir = dir / "src";
  options.nvrtc = dir.path();
  const ScopedJitOptions scope(options);
  const auto kernel = compile(tiny_kernel(dir / "src"), "sm_90a", "fwd");
  ASSERT_FALSE(kernel.ok());
  expect_says(kernel.status(), {"libnvrtc.so.13", dir.path().string(), "pip install"});
  options.nvrtc = dir / "libnvrtc.so.13";
  testing::write_text(options.nvrtc, "no library");
  set_jit_options(options);
  expect_says(compile(tiny_kernel(dir / "src"), "sm_90a", "fwd").status(),
              {options.nvrtc, "cannot be loaded"});
}

// Loading it would take longer than finding a kernel on disk.
TEST(JitWithoutCompiler, ReadsTheVersionFromTheNamesOfFiles) {
  const Scratch dir;
  const fs::path lib = dir.path() / "nvidia/cu13/lib";
  fs::create_directories(lib);
  testing::write_text(lib / "libnvrtc.so.13", "no library");
  EXPECT_EQ(version_of_compiler(dir.path()), "") << "nothing tells";
  testing::write_text(lib / "libnvrtc-builtins.so.13.2", "");
  testing::write_text(lib / "libnvrtc-builtins.so.13.2.78", "");
  testing::write_text(lib / "libnvrtc-builtins.so", "");
  testing::write_text(lib / "libnvrtc-builtins.so.12.9", "");
  testing::write_text(lib / "libnvrtc-builtins.alt.so.13.1", "");
  EXPECT_EQ(version_of_compiler(dir.path()), "13.2");
  EXPECT_EQ(version_of_compiler(lib / "libnvrtc.so.13"), "13.2");
  testing::write_text(lib / "libnvrtc-builtins.so.13.1", "");
  EXPECT_EQ(version_of_compiler(dir.path()), "") << "which of the two is unknown";
}

TEST(JitReport, IsReadFromTheAssemblersLog) {
  CompileReport report;
  report.entry = "sirdar_b";
  constexpr std::string_view kLog =
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized due to reasons in function 'sirdar_b'\n"
      "ptxas info    : Compiling entry function 'sirdar_a' for 'sm_90a'\n"
      "ptxas         .     8 bytes stack frame, 1 bytes spill stores, 2 bytes spill loads\n"
      "ptxas info    : Used 254 registers, used 1 barriers, 800 bytes cumulative stack size\n"
      "ptxas info    : Compiling entry function 'sirdar_b' for 'sm_90a'\n"
      "ptxas         .     48 bytes stack frame, 16 bytes spill stores, 32 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 1 barriers, 48 bytes cumulative stack size, 256 "
      "bytes smem\n";
  ASSERT_TRUE(read_log(kLog, report));
  EXPECT_EQ(report.registers, 168);
  EXPECT_EQ(report.stack_bytes, 48);
  EXPECT_EQ(report.spill_store_bytes, 16);
  EXPECT_EQ(report.spill_load_bytes, 32);
  EXPECT_EQ(report.static_shared_bytes, 256);
  ASSERT_EQ(report.remarks.size(), 1u);
  EXPECT_FALSE(report.is_clean());
  const std::optional<CompileReport> back = parse_report(print(report));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(print(*back), print(report));
  report.entry = "sirdar_c";
  EXPECT_FALSE(read_log(kLog, report));
  EXPECT_FALSE(parse_report("entry x\n").has_value());
  EXPECT_FALSE(parse_report(print(report) + "more\n").has_value());
}

// With a scratch folder for everything that is written.
class JitCompile : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.nvrtc = testing::nvrtc_folder();
    if (options_.nvrtc.empty())
      GTEST_SKIP() << "NOT TESTED: no NVRTC in .venv; ./dev setup installs it";
    options_.cache_dir = dir_ / "cache";
    options_.kernel_dir = dir_ / "src";
    set_jit_options(options_);
  }
  void TearDown() override { set_jit_options({}); }

  Result<CompiledKernelPtr> compiled(const KernelSource& source) {
    return compile(source, "sm_90a", "fwd sq8");
  }
  // The same folder under another name: what this process remembers does not count.
  void forget() {
    options_.cache_dir += "/.";
    set_jit_options(options_);
  }

  Scratch dir_;
  JitOptions options_;
};

TEST_F(JitCompile, ReportsWhatTheKernelTakes) {
  KernelSource source =
      tiny_kernel(dir_ / "src",
                  "__shared__ float s_row[48]; s_row[threadIdx.x % 48] = params.out[params.n];"
                  "__syncthreads(); params.out[threadIdx.x] = s_row[params.n] * config.factor;");
  const auto kernel = compiled(source);
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  const CompileReport& report = kernel.value()->report;
  EXPECT_EQ(kernel.value()->origin, Origin::compiled);
  EXPECT_EQ(report.entry, "sirdar_tiny");
  EXPECT_EQ(report.arch, "sm_90a");
  EXPECT_EQ(report.problem, "fwd sq8");
  EXPECT_EQ(report.threads, 128);
  EXPECT_EQ(report.shared_bytes, 3072);
  EXPECT_EQ(report.static_shared_bytes, 192);
  EXPECT_GT(report.registers, 0);
  EXPECT_TRUE(report.is_clean());
  EXPECT_EQ(report.cubin_bytes, static_cast<long long>(kernel.value()->cubin.size()));
  EXPECT_TRUE(
      kernel.value()->cubin.starts_with("\x7f"
                                        "ELF"));
  EXPECT_TRUE(kernel.value()->name.ends_with("-nvrtc" + report.nvrtc));
}

TEST_F(JitCompile, ReportsSpills) {
  KernelSource source = tiny_kernel(
      dir_ / "src",
      "float r[96];"
      "for (int i = 0; i < 96; ++i) r[i] = params.out[i * params.n];"
      "__syncthreads();"
      "for (int i = 0; i < 96; ++i) params.out[i] = r[i] * r[95 - i] + r[(i * 5) % 96];");
  source.threads = 1024;
  source.min_blocks = 2;  // leaves 32 registers
  const auto kernel = compiled(source);
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  EXPECT_LE(kernel.value()->report.registers, 32);
  EXPECT_TRUE(kernel.value()->report.has_spills()) << print(kernel.value()->report);
}

TEST_F(JitCompile, FindsAgainWhatIsOnDisk) {
  const KernelSource source = tiny_kernel(dir_ / "src");
  const CompiledKernelPtr first = compiled(source).value();
  EXPECT_EQ(compiled(source).value(), first) << "one compilation per process";
  forget();
  const CompiledKernelPtr second = compiled(source).value();
  EXPECT_EQ(second->origin, Origin::cache);
  EXPECT_EQ(second->cubin, first->cubin);
  EXPECT_EQ(print(second->report), print(first->report));
  // Damaged on disk: compiled and written again.
  fs::resize_file(dir_ / "cache" / first->name / "kernel.cubin", 10);
  forget();
  EXPECT_EQ(compiled(source).value()->origin, Origin::compiled);
  EXPECT_TRUE(read_entry(dir_ / "cache", first->name).has_value());
}

TEST_F(JitCompile, FindsWhatIsOnDiskWhereTheCompilerIsBroken) {
  const KernelSource source = tiny_kernel(dir_ / "src");
  const CompiledKernelPtr first = compiled(source).value();
  options_.nvrtc = dir_ / "libnvrtc.so.13";
  testing::write_text(options_.nvrtc, "no library");
  set_jit_options(options_);
  const auto second = compiled(source);
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(second.value()->origin, Origin::cache);
}

TEST_F(JitCompile, IsAnotherKernelWhereAnyInputDiffers) {
  const KernelSource source = tiny_kernel(dir_ / "src");
  const std::string name = compiled(source).value()->name;
  KernelSource other = source;
  other.config_text = "{.factor = 3, .is_on = false}";
  EXPECT_NE(compiled(other).value()->name, name);
  // A header that only another header includes.
  const std::string config = read_text(dir_ / "src/tiny_config.h");
  testing::write_text(dir_ / "src/tiny_config.h", config + "// a comment\n");
  EXPECT_NE(compiled(source).value()->name, name);
  testing::write_text(dir_ / "src/tiny_config.h", config);
  EXPECT_EQ(compiled(source).value()->name, name) << "contents count, not times";
  KernelSource wrong = source;
  wrong.shared_bytes = 4;
  expect_says(compiled(wrong).status(), {"shared_bytes(config) == 4"});
}

TEST_F(JitCompile, ComesFromAPackWhereCompilingIsForbidden) {
  const KernelSource source = tiny_kernel(dir_ / "src");
  options_.may_compile = false;
  set_jit_options(options_);
  expect_says(compiled(source).status(), {"sirdar_tiny", "SIRDAR_NO_JIT", "pack"});
  options_.may_compile = true;
  set_jit_options(options_);
  ASSERT_TRUE(compiled(source).ok());
  fs::rename(dir_ / "cache", dir_ / "pack");
  options_.may_compile = false;
  options_.nvrtc = dir_ / "nowhere";  // nor is there a compiler to ask for its version
  options_.cache_dir = fmt::format("{}:{}", (dir_ / "cache").string(), (dir_ / "pack").string());
  set_jit_options(options_);
  const auto kernel = compiled(source);
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  EXPECT_EQ(kernel.value()->origin, Origin::pack);
  EXPECT_FALSE(fs::exists(dir_ / "cache"));
}

TEST_F(JitCompile, ObeysTheEnvironment) {
  const KernelSource source = tiny_kernel(dir_ / "src");
  JitOptions options;
  options.nvrtc = options_.nvrtc;
  set_jit_options(options);
  setenv("SIRDAR_CACHE_DIR", (dir_ / "elsewhere").c_str(), 1);
  setenv("SIRDAR_KERNEL_DIR", (dir_ / "src").c_str(), 1);
  setenv("SIRDAR_DUMP", (dir_ / "dump").c_str(), 1);
  setenv("SIRDAR_NO_JIT", "1", 1);
  EXPECT_FALSE(compiled(source).ok());
  setenv("SIRDAR_NO_JIT", "0", 1);
  const auto kernel = compiled(source);
  for (const char* name : {"SIRDAR_CACHE_DIR", "SIRDAR_KERNEL_DIR", "SIRDAR_DUMP", "SIRDAR_NO_JIT"})
    unsetenv(name);
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  EXPECT_TRUE(fs::exists(dir_ / "elsewhere" / kernel.value()->name));
  const std::string base =
      (dir_ / "dump").string() + "/sirdar_tiny-" + kernel.value()->name.substr(0, 8);
  EXPECT_EQ(read_text(base + ".cu"), kernel.value()->source);
  EXPECT_EQ(read_text(base + ".cubin"), kernel.value()->cubin);
  EXPECT_EQ(read_text(base + ".report.txt"), print(kernel.value()->report));
  EXPECT_NE(read_text(base + ".ptx").find(".entry sirdar_tiny"), std::string::npos);
}

TEST_F(JitCompile, WorksWithACacheThatCannotBeWritten) {
  testing::write_text(dir_ / "file", "");
  options_.cache_dir = dir_ / "file/cache";
  set_jit_options(options_);
  std::string said;
  set_log_sink([&](LogLevel, std::string_view text) { said += text; });
  EXPECT_TRUE(compiled(tiny_kernel(dir_ / "src")).ok());
  set_log_sink({});
  EXPECT_NE(said.find("cannot be written"), std::string::npos) << said;
}

TEST_F(JitCompile, FailsWithTheLogTheOptionsAndTheSource) {
  options_.dump_dir = dir_ / "dump";
  set_jit_options(options_);
  const Status status = compiled(tiny_kernel(dir_ / "src", "undeclared_name = 1;")).status();
  expect_says(status, {"undeclared_name", "-std=c++20", "sm_90a", (dir_ / "dump").string()});
  ASSERT_EQ(std::distance(fs::directory_iterator(dir_ / "dump"), fs::directory_iterator()), 1);
  // The process stays usable, and what failed may work the next time.
  EXPECT_TRUE(compiled(tiny_kernel(dir_ / "src")).ok());
}

// NVRTC's own words would be about an option that nobody gave.
TEST_F(JitCompile, NamesTheArchitecturesThatTheCompilerKnows) {
  options_.dump_dir = dir_ / "dump";
  set_jit_options(options_);
  const KernelSource source = tiny_kernel(dir_ / "src");
  for (const char* arch : {"sm_20", "sm_91a", "sm_1", "sm_9000", "sm_90b"}) {
    const Status status = compile(source, arch, "fwd sq8").status();
    expect_says(status, {std::string("arch: ") + arch + " is none", "sm_80, ", "sm_90"});
    EXPECT_EQ(status.argument(), "arch");
  }
  EXPECT_FALSE(fs::exists(dir_ / "dump")) << "there is nothing to look at";
}

TEST_F(JitCompile, NamesAKernelDirectoryThatIsNone) {
  const KernelSource source = tiny_kernel(dir_ / "src");
  testing::write_text(dir_ / "file", "");
  for (const char* name : {"none", "file"}) {
    options_.kernel_dir = dir_ / name;
    set_jit_options(options_);
    const Status status = compiled(source).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message().find("kernel_dir: " + options_.kernel_dir), 0u) << status.message();
    EXPECT_NE(status.message().find("SIRDAR_KERNEL_DIR"), std::string::npos);
  }
  fs::create_directories(dir_ / "empty");
  options_.kernel_dir = dir_ / "empty";
  set_jit_options(options_);
  expect_says(compiled(source).status(), {"kernel_dir: ", "empty", "has no file", "src/"});
}

TEST_F(JitCompile, IsDoneOnceForAllThreads) {
  const KernelSource source = tiny_kernel(dir_ / "src", "params.out[1] = 4;");
  std::vector<CompiledKernelPtr> kernels(4);
  std::vector<std::thread> threads;
  for (CompiledKernelPtr& kernel : kernels)
    threads.emplace_back([&] { kernel = compiled(source).value(); });
  for (std::thread& thread : threads) thread.join();
  for (const CompiledKernelPtr& kernel : kernels) EXPECT_EQ(kernel, kernels[0]);
}

TEST_F(JitCompile, ReadsEverySharedHeader) {
  KernelSource source = tiny_kernel(
      dir_ / "src",
      "Logits<float> logits{1.0f, 2.0f}; SoftmaxState<float> state;"
      "state = update(state, logits.logit(params.out[0], 0.0f, alibi_term(0.5f, 3, 4)));"
      "params.out[1] = state.lse() + bf16_to_float(float_to_bf16(params.out[2]));"
      "params.out[3] = Dropout::of(0.5, 1, 2).keeps(0, 0, params.n, 0);"
      "params.out[4] = Extents{8}.sequence(0).length + row_of(0).bits;"
      "StructuredMask mask; params.out[5] = allows(mask, 1, params.n);");
  std::string headers = "#pragma once\n#include <sirdar/types.h>\n";
  for (const auto& file : fs::directory_iterator(std::string(SIRDAR_SOURCE_DIR) + "/src/shared"))
    headers += fmt::format("#include \"shared/{}\"\n", file.path().filename().string());
  fs::create_directory_symlink(std::string(SIRDAR_SOURCE_DIR) + "/include/sirdar",
                               dir_ / "src/sirdar");
  const std::string text = read_text(dir_ / "src/tiny.cuh");
  const size_t at = text.find("struct Params");
  testing::write_text(dir_ / "src/tiny.cuh",
                      headers + text.substr(0, at) + "using namespace sirdar;\n" + text.substr(at));
  const auto kernel = compiled(source);
  EXPECT_TRUE(kernel.ok()) << kernel.status().message();
}

}  // namespace
}  // namespace sirdar::jit
