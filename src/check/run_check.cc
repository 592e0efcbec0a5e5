#include "check/run_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <new>

#include "check/naive.h"
#include "core/elements.h"
#include "cuda/mirror.h"

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

std::string summary(const Report& report) {
  std::string text = report.implementation + ": ok";
  for (const OutputReport& output : report.outputs) {
    text += fmt::format(", {} {:.2f} eps (plain {:.2f})", output.name, output.worst,
                        output.naive_worst);
  }
  return text;
}

}  // namespace

namespace {

// A gap-free view with the shape and dtype of `like`.
TensorView row_major(const TensorView& like, void* data) {
  TensorView view = like;
  view.data = data;
  int64_t stride = 1;
  for (size_t axis = static_cast<size_t>(like.rank); axis-- > 0;) {
    view.stride[axis] = stride;
    stride *= std::max<int64_t>(like.shape[axis], 1);
  }
  return view;
}

}  // namespace

Oracle make_oracle(const Problem& problem, const Args& args) {
  Oracle oracle{expected_outputs(problem, args), {}};
  // The outputs may hold what is to be judged, so the plain computation gets memory of its own.
  Args apart = args;
  std::vector<TensorView*> targets = {&apart.out, &apart.lse, &apart.max_logit, &apart.dq,
                                      &apart.dk,  &apart.dv,  &apart.dbias,     &apart.dsink};
  for (NamedTensor& gradient : apart.dtensors) targets.push_back(&gradient.view);
  std::deque<std::vector<std::byte>> memory;
  std::vector<TensorView> views;
  for (const Expected& one : oracle.expected) {
    const auto bytes = static_cast<size_t>(element_count(one.view) * size_bytes(one.view.dtype));
    memory.emplace_back(std::max<size_t>(bytes, 1));
    views.push_back(row_major(one.view, memory.back().data()));
    if (bytes == 0) continue;
    // Outputs share no memory, so their addresses tell them apart.
    for (TensorView* target : targets) {
      if (target->data == one.view.data) *target = views.back();
    }
  }
  run_naive(problem, apart);
  for (size_t n = 0; n < views.size(); ++n) {
    oracle.naive.push_back(compare(oracle.expected[n], views[n]));
  }
  return oracle;
}

Verdict judge(const Oracle& oracle) {
  Verdict verdict;
  for (size_t n = 0; n < oracle.expected.size(); ++n) {
    const Deviation deviation = compare(oracle.expected[n]);
    const double naive = oracle.naive[n].worst;
    if (!deviation.ok) {
      verdict.faults.push_back(
          fmt::format("{} is {:.9g} where float64 gives {:.9g}: {:.3g} times the allowed error",
                      deviation.where, deviation.actual, deviation.expected, deviation.ratio));
    } else if (deviation.worst > kNaiveFactor * (naive + 1)) {
      verdict.faults.push_back(
          fmt::format("{} is off by {:.3g} epsilons of its scale, far more than the {:.3g} of a "
                      "plain computation",
                      oracle.expected[n].name, deviation.worst, naive));
    }
    verdict.deviations.push_back(deviation);
  }
  return verdict;
}

namespace {

// TMA reaches rows at multiples of 16 bytes, and cuda.rows.* reads many columns at once there:
// every other seed. A CPU takes any element's own alignment.
int64_t alignment_for(const Device& device, const PlanOptions& options, uint64_t seed) {
  const bool takes_any = options.implementation.starts_with("cuda.rows.") && seed % 2 == 1;
  return device.kind == DeviceKind::cuda && !takes_any ? 16 : 1;
}

// On the plan's device, in copies where that is a GPU.
Status run_there(const Plan& plan, const Args& args) {
  if (plan.device().kind == DeviceKind::cpu) return plan.run(args);
  const Result<std::unique_ptr<cuda::Mirror>> mirror =
      cuda::Mirror::of(plan.problem(), args, plan.workspace_bytes(), plan.device().index);
  if (!mirror.ok()) return mirror.status();
  if (Status status = plan.run(mirror.value()->args()); !status.ok()) return status;
  return mirror.value()->copy_back();
}

}  // namespace

Report check(Inputs& inputs, const Oracle& oracle, const PlanOptions& options, uint64_t seed,
             const Device& device) {
  const Problem& problem = inputs.problem();
  Report report;
  report.implementation = options.implementation;
  const Result<Plan> plan = Plan::create(problem, options, device);
  if (!plan.ok()) {
    report.status = plan.status();
    report.text = report.status.message();
    return report;
  }
  report.implementation = plan.value().name();
  report.config = plan.value().config();
  inputs.reset_outputs();
  inputs.set_workspace(plan.value().workspace_bytes());
  report.status = run_there(plan.value(), inputs.args());
  report.ok = report.status.ok();
  if (!report.ok) {
    fail(report, report.status.message(), problem, seed);
    return report;
  }
  if (const std::string damage = inputs.damage(); !damage.empty()) {
    fail(report, damage, problem, seed);
  }
  const Verdict verdict = judge(oracle);
  for (size_t n = 0; n < verdict.deviations.size(); ++n) {
    report.outputs.push_back(
        {oracle.expected[n].name, verdict.deviations[n].worst, oracle.naive[n].worst});
  }
  for (const std::string& fault : verdict.faults) fail(report, fault, problem, seed);
  if (report.ok) report.text = summary(report);
  return report;
}

Report check(Inputs& inputs, const PlanOptions& options, uint64_t seed, const Device& device) try {
  // A refusal needs no oracle.
  if (const Result<Plan> plan = Plan::create(inputs.problem(), options, device); !plan.ok()) {
    return check(inputs, Oracle{}, options, seed, device);
  }
  return check(inputs, make_oracle(inputs.problem(), inputs.args()), options, seed, device);
} catch (const std::bad_alloc&) {
  Report report;
  report.status =
      Status(StatusCode::out_of_memory, "memory: the float64 check does not fit in it.");
  report.text = report.status.message();
  return report;
}

Report check(const Problem& problem, const PlanOptions& options, uint64_t seed,
             const Device& device) try {
  Report report;
  report.status = problem.validate();
  if (report.status.ok()) {
    Inputs inputs(problem, seed, Style::hostile, alignment_for(device, options, seed));
    return check(inputs, options, seed, device);
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
