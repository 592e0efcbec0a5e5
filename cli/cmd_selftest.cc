// selftest: the conformance corpus on this machine.
#include "check/run_check.h"
#include "commands.h"
#include "corpus.h"
#include "implementations.h"
#include "parse.h"
#include "progress.h"

#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

namespace sirdar::cli {
namespace {

struct SelftestFlags {
  std::optional<std::string> seconds, seed, backend;
};

std::vector<std::string_view> corpus_problems() {
  std::vector<std::string_view> problems;
  for (const CorpusFile& file : corpus_files()) {
    for (std::string_view text = file.text; !text.empty();) {
      const size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = text.substr(0, end);
      if (!line.empty() && line[0] != '#') problems.push_back(line);
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }
  return problems;
}

struct Tally {
  int64_t num_problems = 0, num_checks = 0, num_refusals = 0, num_failures = 0;
  std::string refusal;  // the last
};

Status check_everywhere(const Problem& problem, const std::vector<std::string>& names,
                        uint64_t seed, Progress& progress, Tally& tally) {
  ++tally.num_problems;
  for (const std::string& name : names) {
    const Result<std::string> reason = refusal(problem, name);
    if (!reason.ok()) return reason.status();
    if (!reason.value().empty()) {
      ++tally.num_refusals;
      tally.refusal = reason.value();
      continue;
    }
    PlanOptions options;
    options.implementation = name;
    const Result<Device> device = device_of(name);
    if (!device.ok()) return device.status();
    const check::Report report = check::check(problem, options, seed, device.value());
    ++tally.num_checks;
    if (report.ok) continue;
    ++tally.num_failures;
    progress.clear();
    fmt::print("FAIL {}\n  sirdar check '{}' --seed {} --backend {}\n", report.text, problem.str(),
               seed, name);
  }
  return {};
}

int selftest(const SelftestFlags& flags) {
  const Result<int64_t> seconds = parse_integer("--seconds", flags.seconds.value_or("60"), 1);
  if (!seconds.ok()) return fail(seconds.status());
  const Result<uint64_t> seed = parse_unsigned("--seed", flags.seed.value_or("1"));
  if (!seed.ok()) return fail(seed.status());
  const Result<std::vector<std::string>> names = implementation_names(flags.backend);
  if (!names.ok()) return fail(names.status());

  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  const std::vector<std::string_view> problems = corpus_problems();
  if (problems.empty()) return fail("selftest: this build carries no problems; build it again.");
  Progress progress("selftest");
  Tally tally;
  for (const std::string_view text : problems) {
    if (elapsed() >= static_cast<double>(seconds.value())) break;
    progress.show(tally.num_problems, static_cast<int64_t>(problems.size()), text);
    const Result<Problem> problem = Problem::parse(text);
    if (!problem.ok()) return fail(problem.status());
    Status status = check_everywhere(problem.value(), names.value(), seed.value(), progress, tally);
    if (!status.ok()) return fail(status);
  }
  progress.clear();
  if (tally.num_checks == 0) {
    return fail(
        fmt::format("selftest: nothing was checked, all is refused ({}); give a --backend "
                    "that runs here, or none.",
                    tally.refusal));
  }
  const bool is_cut_short = tally.num_problems < static_cast<int64_t>(problems.size());
  fmt::print(
      "{}: {} of {} problems{}, {} checks, {} failed, {} refused by an implementation, "
      "{:.1f} s, seed {}\n",
      tally.num_failures == 0 ? "ok" : "FAIL", tally.num_problems, problems.size(),
      is_cut_short ? " (more with a larger --seconds)" : "", tally.num_checks, tally.num_failures,
      tally.num_refusals, elapsed(), seed.value());
  return tally.num_failures == 0 ? kExitOk : kExitCheckFailed;
}

}  // namespace

Action declare_selftest(CLI::App& app) {
  auto flags = std::make_shared<SelftestFlags>();
  app.add_option("--seconds", flags->seconds, "start no problem after this time (default 60)")
      ->type_name("N");
  app.add_option("--seed", flags->seed, "of the random data (default 1)")->type_name("N");
  app.add_option("--backend", flags->backend, "only this implementation, like cpu or cuda")
      ->type_name("NAME");
  app.footer("Example:\n  sirdar selftest --seconds 10");
  return [flags] { return selftest(*flags); };
}

}  // namespace sirdar::cli
