#include "kernel_ladder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>

#include "check/run_check.h"
#include "cuda/driver.h"
#include "cuda/mirror.h"
#include "cuda/sm90/forward/choose.h"
#include "cuda/sm90/forward/config_names.h"
#include "cuda/sm90/forward/forward.h"
#include "cuda/sm90/forward/rungs.h"
#include "plan/config_fields.h"
#include "plan/cost.h"

namespace sirdar::cli {
namespace {

constexpr int kRounds = 9;
constexpr double kTurnMs = 20;  // of one kernel in one round

PlanOptions options_for(const sm90::ForwardConfig& config) {
  PlanOptions options;
  options.implementation = std::string(sm90::kForward.name);
  fields(config, [&](std::string_view name, const auto& value) {
    options.knobs.emplace_back(std::string(name), field_text(value));
  });
  return options;
}

std::vector<KernelRung> rungs_of(const Problem& problem) {
  const sm90::ForwardConfig product = sm90::choose_config(problem);
  std::vector<KernelRung> rungs;
  for (size_t i = 0; i < sm90::kRungs.size(); ++i) {
    if (!has_rung(product, i)) continue;
    const sm90::ForwardConfig config = config_of_rung(product, i);
    KernelRung rung;
    rung.system = sm90::kRungs[i].system;
    rung.name = sm90::kRungs[i].name;
    rung.is_extra = sm90::kRungs[i].is_extra;
    rung.is_product = config == product;
    rung.options = options_for(config);
    rung.config = print_fields(config);
    rungs.push_back(std::move(rung));
  }
  return rungs;
}

Status compile_rung(const Problem& problem, KernelRung& rung) {
  const Result<Device> device = Device::named("h200");
  if (!device.ok()) return device.status();
  const Result<Config> config = sm90::kForward.configure(problem, device.value(), rung.options);
  if (!config.ok()) return config.status();
  const Result<std::vector<KernelSource>> sources = sm90::kForward.kernels(problem, config.value());
  if (!sources.ok()) return sources.status();
  const auto kernel =
      jit::compile(sources.value().back(), jit::arch_of(device.value()), problem.str());
  if (!kernel.ok()) return kernel.status();
  rung.kernel = kernel.value();
  return {};
}

// Few enough pairs for float64 on a CPU, with tiles that end early and more than one sequence.
Problem small_problem(const Problem& problem) {
  Problem small = problem;
  small.batch = 2;
  small.num_heads_q = 2 * problem.group_size();
  small.num_heads_kv = 2;
  small.seqlen_q = std::min<int64_t>(problem.seqlen_q, 328);
  small.seqlen_k = std::min<int64_t>(problem.seqlen_k, small.seqlen_q + 64);
  return small;
}

// Runs every rung on one small problem and holds it against float64.
Status check_rungs(const Problem& small, const Device& device, std::vector<KernelRung>& rungs) {
  check::Inputs inputs(small, 1, check::Style::plain);
  const check::Oracle oracle = check::make_oracle(small, inputs.args());
  for (KernelRung& rung : rungs) {
    inputs.reset_outputs();
    const Result<Plan> plan = Plan::create(small, rung.options, device);
    if (!plan.ok()) return plan.status();
    const auto mirror = cuda::Mirror::of(small, inputs.args(), plan.value().workspace_bytes(),
                                         plan.value().device().index);
    if (!mirror.ok()) return mirror.status();
    if (Status status = plan.value().run(mirror.value()->args()); !status.ok()) return status;
    if (Status status = mirror.value()->copy_back(); !status.ok()) return status;
    const check::Verdict verdict = check::judge(oracle);
    for (const check::Deviation& deviation : verdict.deviations) {
      rung.max_error = std::max(rung.max_error, deviation.error);
    }
    if (!verdict.faults.empty()) rung.fault = verdict.faults.front();
  }
  return {};
}

// Milliseconds of one run, over `count` runs in a row and the wait for the last.
Result<double> time_runs(const Plan& plan, const Args& args, int count) {
  const cuda::Driver& driver = *cuda::driver().value();
  const auto wait = [&] {
    return cuda::check(driver, driver.context_synchronize(), "waiting for the device");
  };
  if (Status status = plan.run(args); !status.ok()) return status;  // the clock, and the caches
  if (Status status = wait(); !status.ok()) return status;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) {
    if (Status status = plan.run(args); !status.ok()) return status;
  }
  if (Status status = wait(); !status.ok()) return status;
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  return time.count() / count;
}

// In turns, whose order is drawn anew each round: a card at its power cap runs faster after a
// kernel that left it cool.
Status time_rungs(const Problem& problem, const Device& device, const KernelLadderOptions& options,
                  std::vector<KernelRung>& rungs) {
  std::vector<Plan> plans;
  size_t workspace = 0;
  for (const KernelRung& rung : rungs) {
    Result<Plan> plan = Plan::create(problem, rung.options, device);
    if (!plan.ok()) return plan.status();
    workspace = std::max(workspace, plan.value().workspace_bytes());
    plans.push_back(std::move(plan).value());
  }
  std::unique_ptr<cuda::Mirror> mirror;
  {
    const check::Inputs inputs(problem, 1, check::Style::plain);
    auto made = cuda::Mirror::of(problem, inputs.args(), workspace, plans[0].device().index);
    if (!made.ok()) return made.status();
    mirror = std::move(made).value();
  }
  std::vector<size_t> order(rungs.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::vector<std::vector<double>> times(rungs.size());
  std::mt19937 random(1);
  for (int round = 0; round < kRounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      if (options.on_step) options.on_step(fmt::format("round {}: {}", round + 1, rungs[i].name));
      const Result<double> one = time_runs(plans[i], mirror->args(), 1);
      if (!one.ok()) return one.status();
      const int count = std::clamp(static_cast<int>(kTurnMs / one.value()), 1, 1000);
      const Result<double> ms = time_runs(plans[i], mirror->args(), count);
      if (!ms.ok()) return ms.status();
      times[i].push_back(ms.value());
    }
  }
  const double flops = cost_of(problem).flops;
  double before = 0;
  for (size_t i = 0; i < rungs.size(); ++i) {
    std::nth_element(times[i].begin(), times[i].begin() + kRounds / 2, times[i].end());
    rungs[i].ms = times[i][kRounds / 2];
    rungs[i].tflops = flops / rungs[i].ms * 1e-9;
    if (before > 0) rungs[i].ratio = rungs[i].tflops / before;
    if (!rungs[i].is_extra) before = rungs[i].tflops;
  }
  return {};
}

}  // namespace

std::string kernel_ladder_refusal(const Problem& problem) {
  const FeatureSet taken = feature::gqa | feature::head_dim_v | feature::causal |
                           feature::top_left | feature::lse | feature::dtype_bf16 |
                           feature::dtype_fp16;
  const FeatureSet others = problem.features().minus(taken);
  if (!others.empty()) {
    return fmt::format(
        "{} was asked for; with --device cuda the ladder climbs dense bf16 or fp16 forward "
        "problems, causal or not; leave the word out.",
        others.str());
  }
  const Result<Device> device = Device::named("h200");
  if (!device.ok()) return device.status().message();
  const Status status = sm90::kForward.supports(problem, device.value());
  return status.ok() ? "" : fmt::format("{} {}.", sm90::kForward.name, status.message());
}

Result<std::vector<KernelRung>> climb_kernels(const Problem& problem,
                                              const KernelLadderOptions& options) {
  const Result<Device> device = options.compile_only ? Device::named("h200") : Device::cuda();
  if (!device.ok()) return device.status();
  std::vector<KernelRung> rungs = rungs_of(problem);
  for (KernelRung& rung : rungs) {
    if (options.on_step) options.on_step(rung.name);
    if (Status status = compile_rung(problem, rung); !status.ok()) return status;
  }
  if (options.compile_only) return rungs;
  if (options.on_step) options.on_step("float64");
  Status status = check_rungs(small_problem(problem), device.value(), rungs);
  if (status.ok()) status = time_rungs(problem, device.value(), options, rungs);
  if (!status.ok()) return status;
  return rungs;
}

}  // namespace sirdar::cli
