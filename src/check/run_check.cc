#include "check/run_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "check/naive.h"
#include "core/elements.h"

namespace sirdar::check {
namespace {

std::string origin(const Problem& problem, uint64_t seed) {
  return fmt::format("problem '{}', seed {}", problem.str(), seed);
}

void fail(Report& report, const std::string& what, const Problem& problem, uint64_t seed) {
  report.ok = false;
  report.text = fmt::format("{}{}: {} ({})", report.text.empty() ? "" : report.text + "\n",
                            report.implementation, what, origin(problem, seed));
}

// Every output against float64, and against how far the naive computation is off.
void judge(Report& report, const std::vector<Expected>& expected,
           const std::vector<Deviation>& naive, const Problem& problem, uint64_t seed) {
  for (size_t n = 0; n < expected.size(); ++n) {
    const Deviation deviation = compare(expected[n]);
    report.outputs.push_back({expected[n].name, deviation.worst, naive[n].worst});
    if (!deviation.ok) {
      fail(report,
           fmt::format("{} is {:.9g} and float64 gives {:.9g}: {:.3g} times the allowed error",
                       deviation.where, deviation.actual, deviation.expected, deviation.ratio),
           problem, seed);
    } else if (deviation.worst > 2 * naive[n].worst + 1) {
      fail(report,
           fmt::format("{} is off by {:.3g} epsilons of its scale, more than twice the {:.3g} of a "
                       "plain computation plus one",
                       expected[n].name, deviation.worst, naive[n].worst),
           problem, seed);
    }
  }
}

std::string summary(const Report& report) {
  std::string text = report.implementation + ": ok";
  for (const OutputReport& output : report.outputs) {
    text += fmt::format(", {} {:.2f} eps (plain {:.2f})", output.name, output.worst,
                        output.naive_worst);
  }
  return text;
}

}  // namespace

Report check(Inputs& inputs, const PlanOptions& options, uint64_t seed) try {
  const Problem& problem = inputs.problem();
  Report report;
  report.implementation = options.implementation;
  const Result<Plan> plan = Plan::create(problem, options);
  if (!plan.ok()) {
    report.status = plan.status();
    report.text = report.status.message();
    return report;
  }
  report.implementation = plan.value().name();
  report.config = plan.value().config();
  const std::vector<Expected> expected = expected_outputs(problem, inputs.args());
  inputs.reset_outputs();
  run_naive(problem, inputs.args());
  std::vector<Deviation> naive;
  for (const Expected& one : expected) naive.push_back(compare(one));

  inputs.reset_outputs();
  inputs.set_workspace(plan.value().workspace_bytes());
  report.status = plan.value().run(inputs.args());
  report.ok = report.status.ok();
  if (!report.ok) {
    fail(report, report.status.message(), problem, seed);
    return report;
  }
  if (const std::string damage = inputs.damage(); !damage.empty()) {
    fail(report, damage, problem, seed);
  }
  judge(report, expected, naive, problem, seed);
  if (report.ok) report.text = summary(report);
  return report;
} catch (const std::bad_alloc&) {
  Report report;
  report.status =
      Status(StatusCode::out_of_memory, "memory: the float64 check does not fit in it.");
  report.text = report.status.message();
  return report;
}

Report check(const Problem& problem, const PlanOptions& options, uint64_t seed) try {
  Report report;
  report.status = problem.validate();
  if (report.status.ok()) {
    Inputs inputs(problem, seed);
    return check(inputs, options, seed);
  }
  report.text = report.status.message();
  return report;
} catch (const std::bad_alloc&) {
  Report report;
  report.status = Status(StatusCode::out_of_memory, "memory: the inputs do not fit in it.");
  report.text = report.status.message();
  return report;
}

}  // namespace sirdar::check
