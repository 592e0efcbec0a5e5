// The pool behind the executor hook: every index once, slots never shared, callers side by side,
// nested calls, more threads than cores, and a forked child.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "cpu/executor.h"

namespace sirdar::cpu {
namespace {

struct Count {
  std::vector<std::atomic<int>> visits;
  std::vector<std::atomic<int>> inside;  // per slot
  std::atomic<bool> is_slot_shared{false};

  Count(int64_t count, int slots)
      : visits(static_cast<size_t>(count)), inside(static_cast<size_t>(slots)) {}
  static void visit(void* arg, int64_t index, int slot) {
    Count& self = *static_cast<Count*>(arg);
    if (self.inside.at(static_cast<size_t>(slot)).fetch_add(1) != 0) self.is_slot_shared = true;
    ++self.visits.at(static_cast<size_t>(index));
    --self.inside[static_cast<size_t>(slot)];
  }
  bool is_right() const {
    for (const std::atomic<int>& visit : visits)
      if (visit != 1) return false;
    return !is_slot_shared;
  }
};

bool run_counted(int64_t count, int slots) {
  Count counted(count, slots);
  const Executor& pool = default_executor();
  pool.parallel_for(pool.context, count, slots, Count::visit, &counted);
  return counted.is_right();
}

TEST(CpuExecutor, VisitsEveryIndexOnce) {
  for (const int64_t count : {0, 1, 2, 3, 7, 1000})
    for (const int slots : {1, 2, 3, 16}) EXPECT_TRUE(run_counted(count, slots)) << count;
}

TEST(CpuExecutor, BoundsTheThreadsHoweverManyAreAsked) {
  EXPECT_TRUE(run_counted(5000, 100000));
  EXPECT_LT(num_pool_workers(), kMaxThreads);
}

TEST(CpuExecutor, ServesManyCallersAtOnce) {
  std::atomic<int> right{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) right += run_counted(37, 4) ? 1 : 0;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(right, 8 * 50);
}

TEST(CpuExecutor, RunsNestedCallsSerially) {
  struct Nested {
    std::atomic<int> right{0};
    static void run(void* arg, int64_t, int) {
      const int workers = num_pool_workers();
      const bool is_right = run_counted(20, 3);
      static_cast<Nested*>(arg)->right += is_right && num_pool_workers() == workers ? 1 : 0;
    }
  } nested;
  EXPECT_TRUE(run_counted(100, 4));  // the workers exist
  const Executor& pool = default_executor();
  pool.parallel_for(pool.context, 12, 4, Nested::run, &nested);
  EXPECT_EQ(nested.right, 12);
  EXPECT_TRUE(run_counted(100, 4)) << "the caller's thread may start parallel work again";
}

TEST(CpuExecutor, WorksInAForkedChild) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer forbids threads in a child of a process with threads";
#endif
  EXPECT_TRUE(run_counted(100, 4));
  for (int round = 0; round < 5; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const bool starts_empty = num_pool_workers() == 0;
      const bool is_right = run_counted(500, 4);
      _exit(starts_empty && is_right && num_pool_workers() == 3 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_TRUE(run_counted(100, 4)) << "the parent's pool still works";
  }
}

}  // namespace
}  // namespace sirdar::cpu
