// The one place where kernels are launched.
#pragma once

#include "cuda/context.h"
#include "cuda/kernel.h"

#include <sirdar/plan.hpp>

#include <type_traits>

namespace sirdar::cuda {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

struct Launch {
  const Kernel* kernel = nullptr;
  Dim3 grid;     // blocks; nothing may be 0
  Dim3 cluster;  // blocks of one cluster; 1, 1, 1: none
  // May begin before the kernel ahead of it in the stream has ended; the kernel waits itself
  // (griddepcontrol.wait) before it reads what that one wrote.
  bool is_programmatic = false;
  // All blocks run at one time, or the launch fails: they wait for each other.
  bool is_cooperative = false;
  const Problem* problem = nullptr;  // for messages
};

// Puts the kernel into the stream with a copy of its parameters; returns before it has run. Leaves
// the caller's current context as it was, allocates nothing and can be captured into a graph.
Status launch_bytes(const Launch& launch, const void* params, Stream stream);
// In the stream's context, which is `scope`.
Status launch_bytes(const ContextScope& scope, const Launch& launch, const void* params,
                    Stream stream);

template <class Params>
Status launch(const Launch& launch, const Params& params, Stream stream) {
  static_assert(std::is_trivially_copyable_v<Params>);
  return launch_bytes(launch, &params, stream);
}

}  // namespace sirdar::cuda
