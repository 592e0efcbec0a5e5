// A call as the launches that it is made of, written down before a GPU is asked: what runs on a
// device, and on the emulated machine, is this list.
#pragma once

#include "cuda/launch.h"

#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

namespace sirdar::cuda {

struct Step {
  size_t kernel = 0;  // place among the kernels of the plan
  Dim3 grid, cluster;
  std::vector<std::byte> params;
  bool is_programmatic = false, is_cooperative = false;  // as of Launch
};

// A plan's kernels, compiled and loaded when they are first needed. Any number of threads.
class PlanKernels {
 public:
  // The same sources and device in every call; the first one asks for them.
  Status load(const std::function<std::vector<KernelSource>()>& sources, const Device& device,
              const Problem& problem);
  // One after the other, in the stream's context. After load().
  Status run(const ContextScope& scope, const std::vector<Step>& steps, const Problem& problem,
             Stream stream) const;

 private:
  std::once_flag once_;
  Status status_;
  std::vector<KernelPtr> kernels_;
};

}  // namespace sirdar::cuda
