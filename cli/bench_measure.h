// Times one problem. On a CPU: ours, the machine's peak and, when wanted, the naive method, in
// turns, so that whatever else the machine does at the time meets all of them.
#pragma once

#include <sirdar/plan.hpp>

#include <optional>
#include <string>
#include <vector>

#include "check/inputs.h"
#include "plan/cost.h"

namespace sirdar::cli {

struct BenchOptions {
  PlanOptions plan;
  bool against_naive = false;
  std::string where;  // "cuda", or an implementation there: on a GPU
  check::Placement placement{.pages = Pages::huge};
  double min_seconds = 1;   // at least this long, and 30 repetitions ...
  double max_seconds = 10;  // ... but no longer than this once there are 3
};

struct Timing {
  double median_ms = 0, least_ms = 0;
  double spread = 0;  // (third quartile - first quartile) / median
};

Timing timing_of(const std::vector<double>& ms);

struct BenchResult {
  std::string problem, implementation, config;
  int repetitions = 0, num_buffers = 0;
  Timing time;
  bool is_exact = true;  // false: the data hide pairs that could not be counted
  std::optional<double> tflops, gbytes_per_s;     // nothing: not exact
  std::optional<double> roofline_percent;         // of what the peaks below allow
  double peak_tflops = 0, peak_gbytes_per_s = 0;  // measured; on a GPU the maker's, 0: unknown
  double extra_mib = 0, jit_ms = 0;
  std::string device;
  std::string isa;  // of a CPU, and threads
  int num_threads = 0;
  std::optional<double> host_us;                  // of a GPU: of the host's time for one call
  std::string naive_library;                      // whose sgemm, tuned for what
  std::string naive_refusal;                      // set: there are no naive times
  std::optional<Timing> naive_exp, naive_vector;  // std::exp; our vector exponential

  // What was done in the median time; peaks of 0 are unknown.
  void add_work(const Cost& cost, const Peaks& peaks);
};

// How many sets of tensors measure() makes: consecutive runs have different data.
int num_buffers(const Problem& problem, const Device& device);

// `plan` is for this machine's CPU, measure_on_gpu()'s for a GPU.
Result<BenchResult> measure(const Plan& plan, const BenchOptions& options);
Result<BenchResult> measure_on_gpu(const Plan& plan, const BenchOptions& options);

}  // namespace sirdar::cli
