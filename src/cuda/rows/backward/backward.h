// The row-by-row backward: its registry entry, and its kernels for implementations of which some
// arguments ask too much.
#pragma once

#include "cuda/rows/backward/config.h"
#include "cuda/steps.h"
#include "expression/emit_cuda.h"
#include "plan/implementation.h"

namespace sirdar::rows {

extern const Implementation kBackward;

size_t backward_workspace_bytes(const Problem& problem);

// Of the passes that companions_of() lists (arguments.h), in that order.
std::vector<KernelSource> companion_sources(const Problem& problem,
                                            const expression::DeviceModification& modification);

// One problem's kernels, compiled and loaded when they are first needed. Any number of threads.
class BackwardLauncher {
 public:
  explicit BackwardLauncher(const Problem& problem);

  // The same device in every call.
  Status load(const Problem& problem, const Device& device);
  // The problem must be one that cuda.rows.backward supports, the arguments valid for it, with a
  // workspace of backward_workspace_bytes().
  Status run(const Plan::State& state, const Args& args, Stream stream);

 private:
  expression::DeviceModification modification_;
  cuda::PlanKernels kernels_;
};

}  // namespace sirdar::rows
