// Folders and options that a test of compiled kernels has for itself.
#pragma once

#include <sirdar/sirdar.hpp>

#include <filesystem>
#include <string>

#include "plan/kernel_source.h"

namespace sirdar::testing {

// A new folder, gone at the end of the scope.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// What set_jit_options() says is restored at the end of the scope.
class ScopedJitOptions {
 public:
  explicit ScopedJitOptions(const JitOptions& options) { set_jit_options(options); }
  ~ScopedJitOptions() { set_jit_options(before_); }
  ScopedJitOptions(const ScopedJitOptions&) = delete;
  ScopedJitOptions& operator=(const ScopedJitOptions&) = delete;

 private:
  JitOptions before_ = jit_options();
};

std::string read_text(const std::filesystem::path& path);
void write_text(const std::filesystem::path& path, const std::string& text);

// The folder that holds NVRTC where ./dev installed it; empty where it did not.
std::string nvrtc_folder();

// A kernel of a few instructions. Its header and those of src/shared and include/sirdar are below
// `kernel_dir`, which this fills; `body` is what the kernel does.
KernelSource tiny_kernel(const std::filesystem::path& kernel_dir,
                         const std::string& body = "params.out[0] = config.factor;");

}  // namespace sirdar::testing
