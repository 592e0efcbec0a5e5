// The row-by-row forward: its registry entry, and its kernel for implementations of which some
// arguments ask too much.
#pragma once

#include "cuda/kernel.h"
#include "cuda/rows/forward/config.h"
#include "expression/emit_cuda.h"
#include "plan/implementation.h"

#include <mutex>

namespace sirdar::rows {

extern const Implementation kForward;

// One problem's kernel, compiled and loaded when it is first needed. Any number of threads.
class Launcher {
 public:
  explicit Launcher(const Problem& problem);

  // The same config and device in every call.
  Status load(const Problem& problem, const ForwardConfig& config, const Device& device);
  // The problem must be one that cuda.rows.forward supports, the arguments valid for it.
  Status run(const Plan::State& state, const ForwardConfig& config, const Args& args,
             Stream stream);

 private:
  expression::DeviceModification modification_;
  std::once_flag once_;
  Status status_;
  cuda::KernelPtr kernel_;
};

}  // namespace sirdar::rows
