// What every Executor must do, tried on one; and a real call over it, bit for bit that of the
// library's own pool.
#pragma once

#include <gtest/gtest.h>

#include <sirdar/sirdar.hpp>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace sirdar::test {

struct Counts {
  std::vector<std::atomic<int>> runs, inside;
  std::atomic<bool> is_shared{false}, is_outside{false};
  Counts(size_t count, size_t slots) : runs(count), inside(slots) {}

  static void item(void* arg, int64_t index, int slot) {
    Counts& counts = *static_cast<Counts*>(arg);
    if (slot < 0 || static_cast<size_t>(slot) >= counts.inside.size()) {
      counts.is_outside = true;
      return;
    }
    std::atomic<int>& inside = counts.inside[static_cast<size_t>(slot)];
    if (inside.fetch_add(1) != 0) counts.is_shared = true;
    ++counts.runs[static_cast<size_t>(index)];
    std::this_thread::yield();  // gives a second user of the slot time to show
    inside.fetch_sub(1);
  }
};

inline void expect_every_item_once(const Executor& executor) {
  for (const int64_t count : {0, 1, 2, 7, 1000}) {
    for (const int max_slots : {1, 2, 5}) {
      Counts counts(static_cast<size_t>(count), static_cast<size_t>(max_slots));
      executor.parallel_for(executor.context, count, max_slots, Counts::item, &counts);
      EXPECT_FALSE(counts.is_outside) << count << " items, " << max_slots << " slots";
      EXPECT_FALSE(counts.is_shared) << count << " items, " << max_slots << " slots";
      for (const std::atomic<int>& runs : counts.runs) EXPECT_EQ(runs, 1);
    }
  }
}

inline std::vector<float> attend(const Executor* executor) {
  const Problem problem = Problem::parse("fwd b2 sq130 sk200 hq3 d32 fp32 causal").value();
  PlanOptions options;
  options.executor = executor;
  options.num_threads = 3;
  const Plan plan = Plan::create(problem, options).value();
  std::vector<float> q(2 * 130 * 3 * 32), k(2 * 200 * 3 * 32), v(k.size()), out(q.size());
  for (size_t n = 0; n < k.size(); ++n) {
    if (n < q.size()) q[n] = 0.01f * static_cast<float>(n % 101) - 0.5f;
    k[n] = 0.01f * static_cast<float>(n % 97) - 0.5f;
    v[n] = 0.01f * static_cast<float>(n % 89) - 0.5f;
  }
  Args args;
  args.q = TensorView::contiguous(q.data(), DType::fp32, {2, 130, 3, 32});
  args.k = TensorView::contiguous(k.data(), DType::fp32, {2, 200, 3, 32});
  args.v = TensorView::contiguous(v.data(), DType::fp32, {2, 200, 3, 32});
  args.out = TensorView::contiguous(out.data(), DType::fp32, {2, 130, 3, 32});
  args.workspace_bytes = plan.workspace_bytes();
  const std::unique_ptr<void, decltype(&std::free)> workspace(
      std::aligned_alloc(64, args.workspace_bytes), std::free);
  args.workspace = workspace.get();
  const Status status = plan.run(args);
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

inline void expect_same_bits_as_own_pool(const Executor& executor) {
  EXPECT_EQ(attend(&executor), attend(nullptr));
}

}  // namespace sirdar::test
