#include "cpu/executor.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

namespace sirdar::cpu {
namespace {

// Set while this thread runs items of some job: a parallel_for inside an item runs serially.
thread_local bool t_is_working = false;

// One parallel_for; lives on its caller's stack.
struct Job {
  Executor::Function fn;
  void* arg;
  int64_t count;
  int max_slots;
  std::atomic<int64_t> next{0};
  // Changed under the pool's mutex.
  int joined = 0;              // slots handed out
  std::atomic<int> active{0};  // workers inside
  Job* following = nullptr;

  bool wants_workers() const {
    return joined < max_slots && next.load(std::memory_order_relaxed) < count;
  }
  void work(int slot) {
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) fn(arg, i, slot);
  }
};

class Pool {
 public:
  void run(Job& job) {
    {
      std::lock_guard lock(mutex_);
      job.joined = 1;  // slot 0 is the caller's
      job.following = jobs_;
      jobs_ = &job;
      start_workers(std::min<int64_t>(job.max_slots, job.count) - 1);
      num_posted_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    t_is_working = true;
    job.work(0);
    t_is_working = false;
    std::unique_lock lock(mutex_);
    Job** link = &jobs_;
    while (*link != &job) link = &(*link)->following;
    *link = job.following;  // nobody can join any more
    if (job.active == 0) return;
    lock.unlock();
    const auto is_done = [&] { return job.active.load(std::memory_order_acquire) == 0; };
    if (look_around(kWaitForLastItem, is_done)) return;
    lock.lock();
    done_.wait(lock, is_done);
  }

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  int num_workers() {
    std::lock_guard lock(mutex_);
    return num_workers_;
  }

 private:
  void start_workers(int64_t wanted) {
    while (num_workers_ < std::min<int64_t>(wanted, kMaxThreads - 1)) {
      try {
        std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {
        return;  // the caller and the workers there are do the work
      }
      ++num_workers_;
    }
  }

  Job* job_to_join() {
    for (Job* job = jobs_; job != nullptr; job = job->following) {
      if (job->wants_workers()) return job;
    }
    return nullptr;
  }

  void serve() {
    t_is_working = true;
    std::unique_lock lock(mutex_);
    while (true) {
      const int64_t seen = num_posted_.load(std::memory_order_relaxed);
      if (Job* job = job_to_join()) {
        const int slot = job->joined++;
        ++job->active;
        lock.unlock();
        job->work(slot);
        lock.lock();
        if (--job->active == 0) done_.notify_all();
        continue;
      }
      lock.unlock();
      look_around(kWaitForNextCall,
                  [&] { return num_posted_.load(std::memory_order_acquire) != seen; });
      lock.lock();
      if (job_to_join() == nullptr) wake_.wait(lock);
    }
  }

  // A sleeping thread costs some 40 us to wake. Calls often come in rows, and the last items of a
  // job end at about the same time, so threads look around before they sleep.
  static constexpr std::chrono::microseconds kWaitForNextCall{20}, kWaitForLastItem{50};
  template <class Condition>
  static bool look_around(std::chrono::microseconds time, const Condition& condition) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (!condition()) {
      if (std::chrono::steady_clock::now() >= end) return false;
      std::this_thread::yield();
    }
    return true;
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* jobs_ = nullptr;
  int num_workers_ = 0;
  std::atomic<int64_t> num_posted_{0};
};

// Never destroyed: workers may still wait on it while static objects go away.
alignas(Pool) unsigned char g_pool_memory[sizeof(Pool)];

Pool& pool() {
  static Pool* const instance = [] {
    Pool* created = new (g_pool_memory) Pool;
    // Only the forking thread lives on in a child: its pool starts afresh, without workers. The
    // lock is held across the fork so that no list is caught half-linked.
    pthread_atfork([] { pool().lock(); }, [] { pool().unlock(); },
                   [] { new (g_pool_memory) Pool; });
    return created;
  }();
  return *instance;
}

void parallel_for(void*, int64_t count, int max_slots, Executor::Function fn, void* arg) {
  if (count <= 1 || max_slots <= 1 || t_is_working) {
    for (int64_t i = 0; i < count; ++i) fn(arg, i, 0);
    return;
  }
  Job job{.fn = fn, .arg = arg, .count = count, .max_slots = max_slots};
  pool().run(job);
}

}  // namespace

const Executor& default_executor() {
  static constexpr Executor executor{parallel_for, nullptr};
  return executor;
}

int num_pool_workers() { return pool().num_workers(); }

}  // namespace sirdar::cpu
