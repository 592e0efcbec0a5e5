// Who runs the work items of a call. The public hook is sirdar::Executor; this is the library's own
// pool behind it: the caller works too, all callers share the same workers, nested calls run
// serially.
#pragma once

#include <sirdar/plan.hpp>

namespace sirdar::cpu {

// More threads than cores are allowed, but not without bound.
inline constexpr int kMaxThreads = 256;

// The process-wide pool. Its threads start with the first call that can use them and sleep between
// calls; a forked child starts its own.
const Executor& default_executor();

// Threads the pool has started in this process, the callers not counted.
int num_pool_workers();

}  // namespace sirdar::cpu
