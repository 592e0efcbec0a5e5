// check: implementations against float64 on random data.
#include "check/run_check.h"
#include "commands.h"
#include "implementations.h"
#include "parse.h"
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

  Progress progress("check");
  int64_t num_checks = 0, num_failures = 0, done = 0;
  const int64_t total = static_cast<int64_t>(problems.value().size() * names.value().size());
  for (const Problem& problem : problems.value()) {
    fmt::print("{}  (seed {})\n  {:<14} {:<6} {:<10} {:>10} {:>10}\n", problem.str(), seed.value(),
               "implementation", "", "output", "error", "plain");
    for (const std::string& name : names.value()) {
      const Result<std::string> reason = refusal(problem, name);
      if (!reason.ok()) return fail(reason.status());
      if (!reason.value().empty()) {
        fmt::print("  {:<14} refused: {}\n", name, reason.value());
        ++done;
        continue;
      }
      progress.show(done++, total, problem.str());
      PlanOptions options;
      options.implementation = name;
      const check::Report report = check::check(problem, options, seed.value());
      progress.clear();
      if (!report.ok && report.outputs.empty() && !report.status.ok()) return fail(report.status);
      ++num_checks;
      num_failures += report.ok ? 0 : 1;
      print_report(report);
    }
  }
  if (num_checks == 0) return fail("check: every implementation refuses; nothing was checked.");
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
