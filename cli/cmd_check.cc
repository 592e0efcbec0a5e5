// check: implementations against float64 on random data.
#include "check/run_check.h"
#include "commands.h"
#include "implementations.h"
#include "parse.h"
#include "peak_memory.h"
#include "progress.h"

#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include <memory>

namespace sirdar::cli {
namespace {

struct CheckFlags {
  std::vector<std::string> words;
  std::optional<std::string> seed, backend;
};

// One problem on one implementation, or why not.
struct Trial {
  const Problem* problem = nullptr;
  std::string name, refusal;
};

// Every problem on every implementation; all of it is known before anything is printed.
Result<std::vector<Trial>> plan_trials(const std::vector<Problem>& problems,
                                       const std::vector<std::string>& names) {
  std::vector<Trial> trials;
  std::string refusals;
  bool is_all_refused = true;
  for (const Problem& problem : problems) {
    for (const std::string& name : names) {
      const Result<std::string> reason = refusal(problem, name);
      if (!reason.ok()) return reason.status();
      trials.push_back({&problem, name, reason.value()});
      is_all_refused = is_all_refused && !reason.value().empty();
      refusals += fmt::format("{}{}: {}", refusals.empty() ? "" : "; ", name, reason.value());
    }
  }
  if (!is_all_refused) return trials;
  return bad_flag("PROBLEM", fmt::format("nothing can be checked, because all refuse ({}); change "
                                         "the problem or leave --backend out.",
                                         refusals));
}

void print_problem(const Problem& problem, uint64_t seed) {
  fmt::print("{}  (seed {})\n  {:<14} {:<6} {:<10} {:>10} {:>10}\n", problem.str(), seed,
             "implementation", "", "output", "error", "plain");
}

void print_report(const check::Report& report) {
  fmt::print("  {:<14} {:<6} {}\n", report.implementation, report.ok ? "ok" : "FAIL",
             report.config);
  for (const check::OutputReport& output : report.outputs) {
    fmt::print("  {:<14} {:<6} {:<10} {:10.3f} {:10.3f}\n", "", "", output.name, output.worst,
               output.naive_worst);
  }
  if (!report.ok) fmt::print("{}\n", report.text);
}

int run_check(const CheckFlags& flags) {
  const Result<std::vector<Problem>> problems = parse_problems(flags.words);
  if (!problems.ok()) return fail(problems.status());
  const Result<std::vector<std::string>> names = implementation_names(flags.backend);
  if (!names.ok()) return fail(names.status());
  const Result<uint64_t> seed = parse_unsigned("--seed", flags.seed.value_or("1"));
  if (!seed.ok()) return fail(seed.status());

  const Result<std::vector<Trial>> trials = plan_trials(problems.value(), names.value());
  if (!trials.ok()) return fail(trials.status());
  for (const Problem& problem : problems.value())
    if (Status status = check_memory(problem); !status.ok()) return fail(status);

  Progress progress("check");
  int64_t num_checks = 0, num_failures = 0, done = 0;
  const int64_t total = static_cast<int64_t>(trials.value().size());
  const Problem* printed = nullptr;
  for (const Trial& trial : trials.value()) {
    progress.show(done++, total, trial.problem->str());
    check::Report report;
    if (trial.refusal.empty()) {
      PlanOptions options;
      options.implementation = trial.name;
      const Result<Device> device = device_of(trial.name);
      if (!device.ok()) return fail(device.status());
      report = check::check(*trial.problem, options, seed.value(), device.value());
    }
    progress.clear();
    const bool has_run = report.ok || !report.outputs.empty() || report.status.ok();
    if (trial.refusal.empty() && !has_run) return fail(report.status);
    if (printed != trial.problem) print_problem(*trial.problem, seed.value());
    printed = trial.problem;
    if (!trial.refusal.empty()) {
      fmt::print("  {:<14} refused: {}\n", trial.name, trial.refusal);
      continue;
    }
    ++num_checks;
    num_failures += report.ok ? 0 : 1;
    print_report(report);
  }
  fmt::print(
      "{} of {} ok; errors in units of the element's natural scale times the dtype's "
      "epsilon, beside those of a plain computation\n",
      num_checks - num_failures, num_checks);
  return num_failures == 0 ? kExitOk : kExitCheckFailed;
}

}  // namespace

Action declare_check(CLI::App& app) {
  auto flags = std::make_shared<CheckFlags>();
  app.add_option("PROBLEM", flags->words, "problem strings, quoted or not")->type_name("");
  app.add_option("--seed", flags->seed, "of the random data (default 1)")->type_name("N");
  app.add_option("--backend", flags->backend, "only this implementation, like cpu or reference")
      ->type_name("NAME");
  app.footer(
      "Examples:\n"
      "  sirdar check 'fwd b2 sq129 sk200 hq4 hkv2 d64 bf16 causal lse'\n"
      "  sirdar check fwd sq64 sk64 d32 softcap:20 bwd sq64 sk64 d32 --seed 7 --backend reference");
  return [flags] { return run_check(*flags); };
}

}  // namespace sirdar::cli
