#include "check/run_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "check/naive.h"
#include "core/elements.h"

namespace sirdar::check {
namespace {

// Errors of the size of a plain computation's are promised up to a factor of two. On one draw of
// data the two worst errors are single samples of rounding luck, often both of one row whose
// largest logits nearly tie, and the ratio of two such samples passes four about once in 300
// problems. So a single draw is called a fault from a factor of eight.
constexpr double kNaiveFactor = 8;

std::string origin(const Problem& problem, uint64_t seed) {
  return fmt::format("problem '{}', seed {}", problem.str(), seed);
}

void fail(Report& report, const std::string& what, const Problem& problem, uint64_t seed) {
  report.ok = false;
  report.text = fmt::format("{}{}: {} ({})", report.text.empty() ? "" : report.text + "\n",
                            report.implementation, what, origin(problem, seed));
}

// Every output against float64, and against how far the naive computation is off.
void judge(Report& report, const Oracle& oracle, const Problem& problem, uint64_t seed) {
  const auto& [expected, naive] = oracle;
  for (size_t n = 0; n < expected.size(); ++n) {
    const Deviation deviation = compare(expected[n]);
    report.outputs.push_back({expected[n].name, deviation.worst, naive[n].worst});
    if (!deviation.ok) {
      fail(report,
           fmt::format("{} is {:.9g} and float64 gives {:.9g}: {:.3g} times the allowed error",
                       deviation.where, deviation.actual, deviation.expected, deviation.ratio),
           problem, seed);
    } else if (deviation.worst > kNaiveFactor * (naive[n].worst + 1)) {
      fail(report,
           fmt::format("{} is off by {:.3g} epsilons of its scale, far more than the {:.3g} of a "
                       "plain computation",
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

Oracle make_oracle(Inputs& inputs) {
  Oracle oracle{expected_outputs(inputs.problem(), inputs.args()), {}};
  inputs.reset_outputs();
  run_naive(inputs.problem(), inputs.args());
  for (const Expected& one : oracle.expected) oracle.naive.push_back(compare(one));
  return oracle;
}

Report check(Inputs& inputs, const Oracle& oracle, const PlanOptions& options, uint64_t seed) {
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
  judge(report, oracle, problem, seed);
  if (report.ok) report.text = summary(report);
  return report;
}

Report check(Inputs& inputs, const PlanOptions& options, uint64_t seed) try {
  // A refusal needs no oracle.
  if (const Result<Plan> plan = Plan::create(inputs.problem(), options); !plan.ok()) {
    return check(inputs, Oracle{}, options, seed);
  }
  return check(inputs, make_oracle(inputs), options, seed);
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
