#include "attend_run.h"

#include "check/data_cost.h"
#include "check/run_check.h"
#include "core/validate.h"
#include "cuda/mirror.h"
#include "flag_terms.h"
#include "implementations.h"
#include "io/array.h"
#include "peak_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace sirdar::cli {
namespace {

constexpr int64_t kMostCounting = check::kMostCounting / 16;  // nobody waits for this number

}  // namespace

Result<Plan> plan_pass(const Problem& problem, const Args& args, const PlanOptions& options,
                       const std::string& where) {
  if (Status status = problem.validate(); !status.ok()) return in_flag_terms(status);
  if (Status status = validate(problem, args, DeviceKind::cpu); !status.ok()) {
    return in_flag_terms(status);
  }
  return plan_in_flag_terms(problem, options, where);
}

Result<PassReport> run_pass(const Plan& plan, const Args& args) {
  const PeakMemory memory;
  std::chrono::duration<double> time{};
  const auto timed_run = [&](const Args& call) {
    const auto start = std::chrono::steady_clock::now();
    Status status = plan.run(call);
    time = std::chrono::steady_clock::now() - start;
    return status;
  };
  if (plan.device().kind == DeviceKind::cuda) {
    // The time is that of the call, which compiles or finds the kernel and starts it.
    const auto mirror =
        cuda::Mirror::of(plan.problem(), args, plan.workspace_bytes(), plan.device().index);
    if (!mirror.ok()) return mirror.status();
    if (Status status = timed_run(mirror.value()->args()); !status.ok()) {
      return in_flag_terms(status);
    }
    if (Status status = mirror.value()->copy_back(); !status.ok()) return status;
  } else {
    Result<io::Buffer> workspace = io::Buffer::allocate(plan.workspace_bytes());
    if (!workspace.ok()) return workspace.status();
    Args call = args;
    call.workspace = workspace.value().data();
    call.workspace_bytes = plan.workspace_bytes();
    if (Status status = timed_run(call); !status.ok()) return in_flag_terms(status);
  }
  PassReport report{plan.name(), plan.explain(), time.count(), {}, memory.extra_bytes()};
  const Cost cost = check::data_cost(plan.problem(), args, kMostCounting);
  if (cost.is_exact) report.flops = cost.flops;
  return report;
}

CheckReport check_pass(const Problem& problem, const Args& args) {
  const check::Oracle oracle = check::make_oracle(problem, args);
  const check::Verdict verdict = check::judge(oracle);
  if (!verdict.faults.empty()) return {false, verdict.faults.front()};
  double max_error = 0, worst_ratio = 0;
  std::string worst_output = oracle.expected.front().name;
  for (size_t n = 0; n < oracle.expected.size(); ++n) {
    const check::Deviation& deviation = verdict.deviations[n];
    max_error = std::max(max_error, deviation.error);
    if (deviation.ratio > worst_ratio) {
      worst_ratio = deviation.ratio;
      worst_output = oracle.expected[n].name;
    }
  }
  return {true, fmt::format("max error {:.2g}, {:.2f} of what rounding allows ({})", max_error,
                            worst_ratio, worst_output)};
}

}  // namespace sirdar::cli
