#include "attend_run.h"

#include "check/compare.h"
#include "core/geometry.h"
#include "io/array.h"
#include "peak_memory.h"
#include "plan/cost.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>

namespace sirdar::cli {
namespace {

// Arguments must be valid.
double flops_of(const Problem& problem, const Args& args) {
  const Extents queries = query_extents(problem, args), keys = key_extents(problem, args);
  std::vector<SequenceLengths> lengths;
  for (int64_t b = 0; b < problem.batch; ++b) {
    lengths.push_back({queries.sequence(b).length, keys.sequence(b).length});
  }
  return cost_of(problem, lengths).flops;
}

}  // namespace

Result<PassReport> run_pass(const Problem& problem, const Args& args, const PlanOptions& options) {
  const Result<Plan> plan = Plan::create(problem, options);
  if (!plan.ok()) return plan.status();
  const PeakMemory memory;
  Result<io::Buffer> workspace = io::Buffer::allocate(plan.value().workspace_bytes());
  if (!workspace.ok()) return workspace.status();
  Args call = args;
  call.workspace = workspace.value().data();
  call.workspace_bytes = plan.value().workspace_bytes();
  const auto start = std::chrono::steady_clock::now();
  if (Status status = plan.value().run(call); !status.ok()) return status;
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  return PassReport{plan.value().name(), plan.value().explain(), time.count(),
                    flops_of(problem, args), memory.extra_bytes()};
}

CheckReport check_pass(const Problem& problem, const Args& args) {
  CheckReport report;
  double max_error = 0, worst_ratio = -1;
  std::string worst_output;
  for (const check::Expected& expected : check::expected_outputs(problem, args)) {
    const check::Deviation deviation = check::compare(expected);
    const double error = std::fabs(deviation.expected - deviation.actual);
    if (std::isfinite(error)) max_error = std::max(max_error, error);
    if (deviation.ratio > worst_ratio) worst_ratio = deviation.ratio, worst_output = expected.name;
    if (deviation.ok) continue;
    report.ok = false;
    report.text = fmt::format("{} is {:.9g} where float64 gives {:.9g}", deviation.where,
                              deviation.actual, deviation.expected);
    return report;
  }
  report.text = fmt::format("max error {:.2g}, {:.2f} of what rounding allows ({})", max_error,
                            std::max(worst_ratio, 0.0), worst_output);
  return report;
}

}  // namespace sirdar::cli
