#include "bench_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include "bench_naive.h"
#include "blas.h"
#include "check/data_cost.h"
#include "check/inputs.h"
#include "cpu/dispatch.h"
#include "cpu/peak.h"
#include "peak_memory.h"
#include "plan/cost.h"
#include "plan/tiles.h"

namespace sirdar::cli {
namespace {

constexpr int kRepetitions = 30;
constexpr double kPeakSeconds = 0.005;
constexpr double kMostBytes = 512 << 20;         // of data, beyond three times a problem's
constexpr int64_t kMostRead = int64_t{2} << 30;  // bytes, to measure the memory

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

std::vector<std::unique_ptr<check::Inputs>> make_buffers(const Problem& problem,
                                                         const Device& device,
                                                         const check::Placement& placement) {
  std::vector<std::unique_ptr<check::Inputs>> buffers;
  for (int i = 0; i < num_buffers(problem, device); ++i) {
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
  int num_threads;
};
Status take(const Plan& plan, const Turn& turn, Isa isa, NaiveAttention* naive, Samples& samples) {
  samples.peak_flops.push_back(
      cpu::measure_peak_flops(isa, plan.problem().dtype_q, turn.num_threads, kPeakSeconds));
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
  result.add_work(cost, {quantile(samples.peak_flops, 0.5), result.peak_gbytes_per_s * 1e9});
  if (!samples.naive_exp.empty()) {
    result.naive_exp = timing_of(samples.naive_exp);
    result.naive_vector = timing_of(samples.naive_vector);
  }
}

// The mean over the buffers, whose data hide different pairs; those of an expression that reads
// none are the same in all.
Cost mean_cost(const Problem& problem, const std::vector<std::unique_ptr<check::Inputs>>& buffers) {
  const bool is_alike =
      masks_of_data(problem).empty() && problem.tensors.empty() && problem.scalars.empty();
  const auto count = is_alike ? 1 : static_cast<int64_t>(buffers.size());
  Cost mean;
  for (int64_t i = 0; i < count; ++i) {
    const Args& args = buffers[static_cast<size_t>(i)]->args();
    const Cost one = check::data_cost(problem, args, check::kMostCounting / count);
    mean.is_exact = mean.is_exact && one.is_exact;
    mean.flops += one.flops / static_cast<double>(count);
    mean.bytes_read += one.bytes_read / static_cast<double>(count);
    mean.bytes_written += one.bytes_written / static_cast<double>(count);
  }
  return mean;
}

// The knob's value where it is given. The plan has accepted it.
std::string knob_or(const PlanOptions& options, std::string_view name, std::string otherwise) {
  for (const auto& [given, value] : options.knobs)
    if (given == name) return value;
  return otherwise;
}

}  // namespace

Timing timing_of(const std::vector<double>& ms) {
  const double median = quantile(ms, 0.5);
  return {median, quantile(ms, 0), (quantile(ms, 0.75) - quantile(ms, 0.25)) / median};
}

void BenchResult::add_work(const Cost& cost, const Peaks& peaks) {
  const double seconds = time.median_ms * 1e-3;
  peak_tflops = peaks.flops_per_s * 1e-12;
  peak_gbytes_per_s = peaks.bytes_per_s * 1e-9;
  is_exact = cost.is_exact;
  if (!is_exact) return;
  tflops = cost.flops / seconds * 1e-12;
  gbytes_per_s = cost.bytes() / seconds * 1e-9;
  if (peaks.flops_per_s > 0) roofline_percent = 100 * roofline_seconds(cost, peaks) / seconds;
}

// Until what is read of them leaves the caches of the cores used; a window reads little of tensors
// that may be large.
int num_buffers(const Problem& problem, const Device& device) {
  Problem whole = problem;
  whole.mask = Mask();
  const double caches = 2.0 * static_cast<double>(device.l2_bytes) * device.num_threads;
  const double most = std::clamp(kMostBytes / cost_of(whole).bytes(), 3.0, 64.0);
  return static_cast<int>(std::clamp(caches / cost_of(problem).bytes() + 1, 3.0, most));
}

Result<BenchResult> measure(const Plan& plan, const BenchOptions& options) {
  const Problem& problem = plan.problem();
  const Result<Isa> isa =
      cpu::choose_isa(plan.device(), knob_or(options.plan, "isa", options.plan.isa), problem);
  if (!isa.ok()) return isa.status();
  BenchResult result{.problem = problem.str(),
                     .implementation = plan.name(),
                     .config = plan.config(),
                     .device = plan.device().name,
                     .isa = std::string(name_of(isa.value())),
                     .num_threads = std::stoi(knob_or(options.plan, "num_threads",
                                                      fmt::to_string(plan.device().num_threads)))};
  const auto buffers = make_buffers(problem, plan.device(), options.placement);
  const Cost cost = mean_cost(problem, buffers);
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
  const int64_t most_read = std::min(kMostRead, free_memory().value_or(kMostRead) / 4);
  result.peak_gbytes_per_s = cpu::measure_read_bandwidth(result.num_threads, 0.2, most_read) * 1e-9;

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
      status =
          take(plan, {ours, exp, vector, result.num_threads}, isa.value(), naive.get(), samples);
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
