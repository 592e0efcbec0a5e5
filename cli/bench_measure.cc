#include "bench_measure.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "bench_naive.h"
#include "blas.h"
#include "check/inputs.h"
#include "cpu/dispatch.h"
#include "cpu/peak.h"
#include "plan/cost.h"

namespace sirdar::cli {
namespace {

constexpr int kRepetitions = 30;
constexpr double kPeakSeconds = 0.005;

template <class Work>
double milliseconds(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

// Different data for consecutive runs, until together they leave the caches of the cores used.
std::vector<std::unique_ptr<check::Inputs>> make_buffers(const Problem& problem, const Cost& cost,
                                                         const Device& device,
                                                         const check::Placement& placement) {
  const double caches = 2.0 * static_cast<double>(device.l2_bytes) * device.num_threads;
  const int count = static_cast<int>(std::clamp(caches / cost.bytes() + 1, 3.0, 64.0));
  std::vector<std::unique_ptr<check::Inputs>> buffers;
  for (int i = 0; i < count; ++i) {
    buffers.push_back(std::make_unique<check::Inputs>(problem, static_cast<uint64_t>(i) + 1,
                                                      check::Style::timed, 1, placement));
  }
  return buffers;
}

struct Samples {
  std::vector<double> ours, peak_flops, naive_exp, naive_vector;
};

// One turn of everything, each on data of its own: nobody finds the caches warmed by another.
struct Turn {
  const Args& ours;
  const Args& naive_exp;
  const Args& naive_vector;
};
Status take(const Plan& plan, const Turn& turn, Isa isa, NaiveAttention* naive, Samples& samples) {
  samples.peak_flops.push_back(cpu::measure_peak_flops(isa, plan.problem().dtype_q,
                                                       plan.device().num_threads, kPeakSeconds));
  Status status;
  samples.ours.push_back(milliseconds([&] { status = plan.run(turn.ours); }));
  if (!status.ok() || naive == nullptr) return status;
  samples.naive_exp.push_back(
      milliseconds([&] { naive->run(turn.naive_exp, NaiveSoftmax::library_exp); }));
  samples.naive_vector.push_back(
      milliseconds([&] { naive->run(turn.naive_vector, NaiveSoftmax::vector_exp); }));
  return {};
}

// The methods must compute the same thing before their times are compared.
Status check_naive(const Plan& plan, const Args& args, NaiveAttention& naive) {
  if (Status status = plan.run(args); !status.ok()) return status;
  for (const NaiveSoftmax softmax : {NaiveSoftmax::library_exp, NaiveSoftmax::vector_exp}) {
    naive.run(args, softmax);
    if (!(naive.difference(args) <= 1e-4))
      return {StatusCode::internal, "bench: the naive method gives another result than ours."};
  }
  return {};
}

void summarise(const Samples& samples, const Cost& cost, BenchResult& result) {
  result.repetitions = static_cast<int>(samples.ours.size());
  result.time = timing_of(samples.ours);
  const double seconds = result.time.median_ms * 1e-3;
  const Peaks peaks{quantile(samples.peak_flops, 0.5), result.peak_gbytes_per_s * 1e9};
  result.peak_tflops = peaks.flops_per_s * 1e-12;
  result.tflops = cost.flops / seconds * 1e-12;
  result.gbytes_per_s = cost.bytes() / seconds * 1e-9;
  result.roofline_percent = 100 * roofline_seconds(cost, peaks) / seconds;
  if (!samples.naive_exp.empty()) {
    result.naive_exp = timing_of(samples.naive_exp);
    result.naive_vector = timing_of(samples.naive_vector);
  }
}

}  // namespace

Timing timing_of(const std::vector<double>& ms) {
  const double median = quantile(ms, 0.5);
  return {median, quantile(ms, 0), (quantile(ms, 0.75) - quantile(ms, 0.25)) / median};
}

Result<BenchResult> measure(const Problem& problem, const BenchOptions& options) {
  const Result<Plan> planned = Plan::create(problem, options.plan);
  if (!planned.ok()) return planned.status();
  const Plan& plan = planned.value();
  const Result<Isa> isa = cpu::choose_isa(plan.device(), options.plan.isa, problem);
  if (!isa.ok()) return isa.status();
  BenchResult result{.problem = problem.str(),
                     .implementation = plan.name(),
                     .config = plan.config(),
                     .device = plan.device().name,
                     .isa = std::string(name_of(isa.value())),
                     .num_threads = plan.device().num_threads};
  const Cost cost = cost_of(problem);
  const auto buffers = make_buffers(problem, cost, plan.device(), options.placement);
  std::vector<std::byte, PageAllocator<std::byte>> workspace(
      plan.workspace_bytes(), PageAllocator<std::byte>(options.placement.pages));
  std::unique_ptr<NaiveAttention> naive;
  if (options.against_naive) {
    result.naive_refusal = NaiveAttention::refusal(problem);
    if (result.naive_refusal.empty()) {
      result.naive_library = "OpenBLAS " + blas().core;
      naive = std::make_unique<NaiveAttention>(problem, isa.value(), result.num_threads);
    }
  }
  result.num_buffers = static_cast<int>(buffers.size());
  result.extra_mib = static_cast<double>(workspace.size()) / (1 << 20);
  result.peak_gbytes_per_s = cpu::measure_read_bandwidth(result.num_threads, 0.2) * 1e-9;

  Samples samples;
  double spent_ms = 0;
  const auto args_of = [&](int index) {
    Args args = buffers[static_cast<size_t>(index) % buffers.size()]->args();
    args.workspace = workspace.data();
    args.workspace_bytes = workspace.size();
    return args;
  };
  if (naive != nullptr) {
    if (Status status = check_naive(plan, args_of(0), *naive); !status.ok()) return status;
  }
  // The first turn warms up and is dropped.
  for (int turn = 0;; ++turn) {
    const Args ours = args_of(turn), exp = args_of(turn + 1), vector = args_of(turn + 2);
    Status status;
    spent_ms += milliseconds([&] {
      status = take(plan, {ours, exp, vector}, isa.value(), naive.get(), samples);
    });
    if (!status.ok()) return status;
    if (turn == 0) samples = {};
    const bool is_enough = turn >= kRepetitions && spent_ms >= options.min_seconds * 1e3;
    if (is_enough || (turn >= 3 && spent_ms >= options.max_seconds * 1e3)) break;
  }
  summarise(samples, cost, result);
  return result;
}

}  // namespace sirdar::cli
