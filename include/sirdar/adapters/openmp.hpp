// An Executor over the caller's OpenMP runtime, for programs that already use one: Sirdar's work
// then shares its threads. Compile with -fopenmp; the library itself links no OpenMP.
//   PlanOptions options;
//   const sirdar::Executor executor = sirdar::adapters::openmp();
//   options.executor = &executor;  // outlives the plan
#pragma once

#ifndef _OPENMP
#error "sirdar/adapters/openmp.hpp: OpenMP is off here; compile with -fopenmp."
#endif

#include <omp.h>

#include <sirdar/plan.hpp>

#include <algorithm>

namespace sirdar::adapters {

// As many threads as OpenMP would give a parallel region of the caller, at most max_slots. Inside a
// region that may not nest the work runs on the calling thread.
inline Executor openmp() {
  const auto parallel_for = [](void*, int64_t count, int max_slots, Executor::Function fn,
                               void* arg) {
    const int64_t most = std::min<int64_t>(count, std::min(max_slots, omp_get_max_threads()));
    const int num_threads = static_cast<int>(std::max<int64_t>(most, 1));
#pragma omp parallel num_threads(num_threads)
    {
      // Below num_threads, and this team's own: a slot is never shared.
      const int slot = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
      for (int64_t index = 0; index < count; ++index) fn(arg, index, slot);
    }
  };
  return {parallel_for, nullptr};
}

}  // namespace sirdar::adapters
