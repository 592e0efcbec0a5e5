// From a KernelSource to machine code: found in memory, in a pack, in the cache, or compiled.
#pragma once

#include "jit/report.h"
#include "plan/kernel_source.h"

#include <sirdar/device.hpp>
#include <sirdar/status.hpp>

#include <filesystem>
#include <memory>
#include <string>

namespace sirdar::jit {

// Where a kernel came from when this process first asked for it.
enum class Origin { compiled, cache, pack };
std::string_view name_of(Origin origin);

struct CompiledKernel {
  std::string name;  // of its cache entry: SHA-256 of all that it depends on, "-nvrtc", version
  std::string source, cubin;
  CompileReport report;
  Origin origin = Origin::compiled;
};
using CompiledKernelPtr = std::shared_ptr<const CompiledKernel>;

// The architecture that code for a device is compiled for, "sm_80" or "sm_90a": with the
// instructions that only this generation has, where it has some.
std::string arch_of(const Device& device);

// Compiles at most once per process and kernel, whatever the number of threads; touches no GPU.
// Kept by the process until it ends. `problem` goes into the report. On a failed compilation the
// message holds the options, the log, and where the source was saved.
Result<CompiledKernelPtr> compile(const KernelSource& source, std::string_view arch,
                                  const std::string& problem);

}  // namespace sirdar::jit
