// Times one problem: ours, the machine's peak and, when wanted, the naive method, in turns, so that
// whatever else the machine does at the time meets all of them.
#pragma once

#include <sirdar/plan.hpp>

#include <optional>
#include <string>
#include <vector>

#include "check/inputs.h"

namespace sirdar::cli {

struct BenchOptions {
  PlanOptions plan;
  bool against_naive = false;
  check::Placement placement{.pages = Pages::huge};
  double min_seconds = 1;   // at least this long, and 30 repetitions ...
  double max_seconds = 10;  // ... but no longer than this once there are 3
};

struct Timing {
  double median_ms = 0, least_ms = 0;
  double spread = 0;  // (third quartile - first quartile) / median
};

struct BenchResult {
  std::string problem, implementation, config;
  int repetitions = 0, num_buffers = 0;
  Timing time;
  double tflops = 0, gbytes_per_s = 0;
  double roofline_percent = 0;  // of what the measured peaks below allow
  double peak_tflops = 0, peak_gbytes_per_s = 0;
  double extra_mib = 0, jit_ms = 0;
  std::string device, isa;
  int num_threads = 0;
  std::string naive_library;                      // whose sgemm, tuned for what
  std::string naive_refusal;                      // set: there are no naive times
  std::optional<Timing> naive_exp, naive_vector;  // std::exp; our vector exponential
};

Result<BenchResult> measure(const Problem& problem, const BenchOptions& options);

}  // namespace sirdar::cli
