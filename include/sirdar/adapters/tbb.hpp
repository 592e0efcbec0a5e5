// An Executor over oneTBB, for programs that already use it. Link the program with TBB; the library
// itself does not.
//   PlanOptions options;
//   const sirdar::Executor executor = sirdar::adapters::tbb();
//   options.executor = &executor;  // outlives the plan
#pragma once

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <sirdar/plan.hpp>

#include <algorithm>
#include <atomic>

namespace sirdar::adapters {

// As many threads as the caller's arena has, at most max_slots, in an arena of their own: the index
// of a thread there is a slot that no other thread has at the same time.
inline Executor tbb() {
  const auto parallel_for = [](void*, int64_t count, int max_slots, Executor::Function fn,
                               void* arg) {
    namespace onetbb = oneapi::tbb;
    const int allowed = std::min(max_slots, onetbb::this_task_arena::max_concurrency());
    const int num_slots = static_cast<int>(std::clamp<int64_t>(count, 1, std::max(allowed, 1)));
    onetbb::task_arena arena(num_slots);
    // Taken in order, one by one: items come longest first.
    std::atomic<int64_t> next{0};
    arena.execute([&] {
      onetbb::parallel_for(0, num_slots, [&](int) {
        const int slot = onetbb::this_task_arena::current_thread_index();
        for (int64_t index = next++; index < count; index = next++) fn(arg, index, slot);
      });
    });
  };
  return {parallel_for, nullptr};
}

}  // namespace sirdar::adapters
