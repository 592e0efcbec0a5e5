#include "cpu/openmp_runtime.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <memory>

namespace sirdar::cpu {
namespace {

struct Runtime {
  // Runs fn(data) on so many threads, the caller among them, and returns when all are done.
  void (*parallel)(void (*fn)(void*), void* data, unsigned num_threads, unsigned flags) = nullptr;
  int (*thread_num)() = nullptr;   // within the team, from 0
  int (*max_threads)() = nullptr;  // that a region of the calling thread would get
};

struct Work {
  const Runtime& runtime;
  const int64_t count;
  const Executor::Function fn;
  void* const arg;
  std::atomic<int64_t> next{0};
};

void take_items(void* data) {
  Work& work = *static_cast<Work*>(data);
  const int slot = work.runtime.thread_num();
  for (int64_t i = work.next++; i < work.count; i = work.next++) work.fn(work.arg, i, slot);
}

void parallel_for(void* context, int64_t count, int max_slots, Executor::Function fn, void* arg) {
  const Runtime& runtime = *static_cast<const Runtime*>(context);
  const int64_t most = std::min<int64_t>(count, std::min(max_slots, runtime.max_threads()));
  if (most <= 1) {
    for (int64_t index = 0; index < count; ++index) fn(arg, index, 0);
    return;
  }
  Work work{runtime, count, fn, arg};
  runtime.parallel(take_items, &work, static_cast<unsigned>(most), 0);
}

template <class Function>
bool bind(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

Result<Executor> openmp_executor(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr)
    return Status(
        StatusCode::invalid_argument,
        std::string("path: ") + path +
            " is not loaded in this process; pass the file of the OpenMP runtime that is.");
  auto runtime = std::make_unique<Runtime>();
  if (!bind(library, "GOMP_parallel", runtime->parallel) ||
      !bind(library, "omp_get_thread_num", runtime->thread_num) ||
      !bind(library, "omp_get_max_threads", runtime->max_threads))
    return Status(
        StatusCode::invalid_argument,
        std::string("path: ") + path +
            " is no OpenMP runtime with GOMP_parallel; pass libgomp, libomp or libiomp5.");
  // Kept for good, like the library behind it: plans hold the executor.
  return Executor{parallel_for, runtime.release()};
}

}  // namespace sirdar::cpu
