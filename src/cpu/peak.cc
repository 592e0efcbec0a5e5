#include "cpu/peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "cpu/dispatch.h"

namespace sirdar::cpu {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Runs work(thread) on every thread, started together; returns the wall time of the whole.
template <class Work>
double timed(int num_threads, const Work& work) {
  std::atomic<int> waiting{num_threads};
  const auto enter = [&](int thread) {
    waiting.fetch_sub(1);
    while (waiting.load() > 0) std::this_thread::yield();
    work(thread);
  };
  std::vector<std::jthread> others;
  for (int thread = 1; thread < num_threads; ++thread) others.emplace_back(enter, thread);
  waiting.fetch_sub(1);
  while (waiting.load() > 0) std::this_thread::yield();
  const Clock::time_point start = Clock::now();
  work(0);
  others.clear();  // joins
  return seconds_since(start);
}

}  // namespace

double measure_peak_flops(Isa isa, DType dtype, int num_threads, double seconds) {
  const ProductKernels kernels = product_kernels_for(isa, dtype);
  std::vector<float> kept(static_cast<size_t>(num_threads));
  const auto run = [&](int64_t rounds) {
    return timed(num_threads,
                 [&](int thread) { kept[static_cast<size_t>(thread)] = kernels.peak(rounds); });
  };
  // Also wakes the wide units: the first microseconds run slower.
  const int64_t probe = 20000;
  const double probe_seconds = run(probe);
  const int64_t rounds = std::max<int64_t>(
      probe, static_cast<int64_t>(static_cast<double>(probe) * seconds / probe_seconds));
  const double elapsed = run(rounds);
  const volatile float sink = kept[0];
  static_cast<void>(sink);
  return static_cast<double>(rounds) * kernels.flops_per_round * num_threads / elapsed;
}

double measure_read_bandwidth(int num_threads, double seconds, int64_t most_bytes) {
  constexpr int64_t kUsual = int64_t{16} << 20, kUnroll = 8;  // 128 MiB
  const int64_t most = most_bytes / 8 / num_threads / kUnroll * kUnroll;
  const int64_t elements_per_thread = std::clamp(most, kUnroll, kUsual);
  std::vector<uint64_t> data(static_cast<size_t>(elements_per_thread * num_threads), 1);
  std::vector<uint64_t> kept(static_cast<size_t>(num_threads));
  const Clock::time_point start = Clock::now();
  double best = 0;
  do {
    const double elapsed = timed(num_threads, [&](int thread) {
      const uint64_t* at = data.data() + thread * elements_per_thread;
      uint64_t sums[kUnroll] = {};
      for (int64_t i = 0; i < elements_per_thread; i += kUnroll)
        for (int lane = 0; lane < kUnroll; ++lane) sums[lane] += at[i + lane];
      for (const uint64_t sum : sums) kept[static_cast<size_t>(thread)] += sum;
    });
    best = std::max(best, static_cast<double>(data.size() * sizeof(uint64_t)) / elapsed);
  } while (seconds_since(start) < seconds);
  const volatile uint64_t sink = kept[0];
  static_cast<void>(sink);
  return best;
}

}  // namespace sirdar::cpu
