#include "bench_measure.h"

#include "check/device_run.h"
#include "plan/cost.h"

#include <algorithm>
#include <chrono>
#include <memory>

namespace sirdar::cli {
namespace {

constexpr int kRepetitions = 30;
constexpr int kHostSamples = 15;

}  // namespace

Result<BenchResult> measure_on_gpu(const Plan& plan, const BenchOptions& options) {
  const Problem& problem = plan.problem();
  BenchResult result{.problem = problem.str(),
                     .implementation = plan.name(),
                     .config = plan.config(),
                     .num_buffers = 1,
                     .extra_mib = static_cast<double>(plan.workspace_bytes()) / (1 << 20),
                     .device = plan.device().name};
  const auto made = check::DeviceRun::of(plan, options.placement);
  if (!made.ok()) return made.status();
  check::DeviceRun& run = *made.value();
  result.jit_ms = run.jit_ms();

  std::vector<double> ms, host_us;
  const auto start = std::chrono::steady_clock::now();
  // The first run warms up and is dropped.
  for (int turn = 0;; ++turn) {
    const Result<double> one = run.device_ms();
    if (!one.ok()) return one.status();
    if (turn > 0) ms.push_back(one.value());
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    const bool is_enough = turn >= kRepetitions && spent.count() >= options.min_seconds;
    if (is_enough || (turn >= 3 && spent.count() >= options.max_seconds)) break;
  }
  for (int i = 0; i < kHostSamples; ++i) {
    const Result<double> one = run.host_us();
    if (!one.ok()) return one.status();
    host_us.push_back(one.value());
  }
  result.time = timing_of(ms);
  result.repetitions = static_cast<int>(ms.size());
  result.host_us = timing_of(host_us).median_ms;

  std::optional<Peaks> peaks = recorded_peaks(plan.device(), problem.dtype_q);
  result.add_work(run.cost(), peaks.value_or(Peaks{}));
  return result;
}

}  // namespace sirdar::cli
