// attend: attention over tensors in files.
#include "attend_inputs.h"
#include "attend_outputs.h"
#include "attend_run.h"
#include "parse.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

namespace sirdar::cli {
namespace {

Result<PlanOptions> plan_options(const AttendFlags& flags) {
  PlanOptions options;
  const Result<std::string> named = parse_word("--backend", flags.backend, "auto");
  if (!named.ok()) return named.status();
  const std::string& backend = named.value();
  if (backend == "cuda") {
    const Result<Device> gpu = Device::cuda();
    if (!gpu.ok()) return bad_flag("--backend", "cuda: " + gpu.status().message());
  }
  if (backend != "auto" && backend != "cpu" && backend != "reference" && backend != "cuda") {
    return bad_flag("--backend",
                    fmt::format("'{}' is not known; use auto, reference, cpu or cuda.", backend));
  }
  if (backend == "reference") options.implementation = "reference";
  options.allow_reference = backend == "auto";
  const Result<std::string> isa = parse_word("--isa", flags.isa, "");
  if (!isa.ok()) return isa.status();
  options.isa = isa.value();
  if (flags.threads) {
    const Result<int64_t> threads = parse_integer("--threads", *flags.threads, 1, 4096);
    if (!threads.ok()) return threads.status();
    options.num_threads = static_cast<int>(threads.value());
  }
  return options;
}

std::string print_bytes(std::optional<int64_t> bytes) {
  if (!bytes) return "unknown";
  return fmt::format("{:.1f} MiB", static_cast<double>(*bytes) / (1 << 20));
}

std::string print_pass(const PassReport& pass) {
  const std::string flops = !pass.flops ? "?"  // the data hide more than is worth counting
                            : pass.seconds <= 0
                                ? "0"
                                : fmt::format("{:.4g}", *pass.flops / pass.seconds * 1e-12);
  return fmt::format("{} {:.3f} ms {} TFLOP/s", pass.implementation, pass.seconds * 1e3, flops);
}

int attend(const AttendFlags& flags) {
  HeldNotices notices;
  const Result<PlanOptions> options = plan_options(flags);
  if (!options.ok()) return fail(options.status());
  const Result<AttendInputs> read = read_attend_inputs(flags);
  if (!read.ok()) return fail(read.status());
  const AttendInputs& inputs = read.value();
  const Result<AttendOutputs> outputs = AttendOutputs::allocate(flags, inputs);
  if (!outputs.ok()) return fail(outputs.status());

  std::vector<std::pair<const Problem*, const Args*>> passes{
      {&inputs.forward, &outputs.value().forward_args()}};
  if (inputs.backward) passes.emplace_back(&*inputs.backward, &outputs.value().backward_args());

  std::vector<Plan> plans;
  for (const auto& [problem, args] : passes) {
    const std::string where = flags.backend == "cuda" ? "cuda" : options.value().implementation;
    const Result<Plan> plan = plan_pass(*problem, *args, options.value(), where);
    if (!plan.ok()) return fail(plan.status());
    plans.push_back(plan.value());
  }
  notices.show();

  std::string line, explanation;
  std::optional<int64_t> extra_bytes = 0;
  for (size_t n = 0; n < passes.size(); ++n) {
    const Result<PassReport> report = run_pass(plans[n], *passes[n].second);
    if (!report.ok()) return fail(report.status());
    const PassReport& pass = report.value();
    line += (line.empty() ? "" : ", ") + print_pass(pass);
    explanation += pass.explanation;
    extra_bytes = extra_bytes && pass.extra_bytes
                      ? std::optional(std::max(*extra_bytes, *pass.extra_bytes))
                      : std::nullopt;
  }
  line += ", peak extra memory " + print_bytes(extra_bytes);

  bool is_right = true;
  if (flags.check) {
    if (isatty(STDERR_FILENO)) notice("comparing with float64 ...");
    for (const auto& [problem, args] : passes) {
      const CheckReport report = check_pass(*problem, *args);
      is_right = is_right && report.ok;
      line += ", " + report.text;
    }
    line += is_right ? ", ok" : ", FAIL";
  }
  // Files appear only when the line has reached its reader.
  const auto print = [&] {
    fmt::print("{}\n{}", line, flags.is_verbose ? explanation : "");
    return flush_output();
  };
  if (Status status = outputs.value().write(print); !status.ok()) return fail(status);
  return is_right ? kExitOk : kExitCheckFailed;
}

}  // namespace

Action declare_attend(CLI::App& app) {
  auto flags = std::make_shared<AttendFlags>();
  declare_attend_flags(app, *flags);
  return [flags] { return attend(*flags); };
}

}  // namespace sirdar::cli
