// A compiled kernel on a device, ready to be launched.
#pragma once

#include "cuda/context.h"
#include "jit/jit.h"

#include <map>
#include <mutex>

namespace sirdar::cuda {

class Kernel {
 public:
  Kernel() = default;
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  int device = 0;        // ordinal
  int threads = 0;       // of one block
  int shared_bytes = 0;  // dynamic, of one block
  CuKernel handle = nullptr;
  jit::CompiledKernelPtr code;

  const std::string& entry() const { return code->report.entry; }

  // Which of the kernel's own counters (KernelSource::num_workspaces) are those of calls with this
  // workspace, of which one runs at a time; -1: none are left. Any thread.
  int counters_of(const void* workspace) const;

 private:
  friend Result<std::shared_ptr<const Kernel>> load_kernel(const KernelSource&, const Device&,
                                                           const std::string&);
  const Driver* driver_ = nullptr;
  CuLibrary library_ = nullptr;
  int num_workspaces_ = 0;
  mutable std::mutex mutex_;
  mutable std::map<const void*, int> workspaces_;
};
using KernelPtr = std::shared_ptr<const Kernel>;

// Compiles (or finds) the kernel and loads it for `device`, with room for its shared memory. Each
// kernel is loaded once per device while anybody holds it. Leaves the caller's current context as
// it was. `problem` is for reports and messages.
Result<KernelPtr> load_kernel(const KernelSource& source, const Device& device,
                              const std::string& problem);

}  // namespace sirdar::cuda
