// sirdar ladder: attention from the naive softmax to FlashAttention-2 on the counted machine, side
// by side, and every count beside its formula.
#include <sirdar/problem.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "commands.h"
#include "ladder_report.h"
#include "reference/ladder/climb.h"

#include <CLI/CLI.hpp>

namespace sirdar::cli {
namespace {

using namespace sirdar::ladder;

struct LadderFlags {
  std::vector<std::string> words;
  int64_t fast_memory_bytes = 196608;  // one A100 multiprocessor
  std::string device = "cpu";
  bool json = false;
};

constexpr const char* kDefaultProblem = "fwd sq1024 sk1024 d64";

// What the ladder cannot take, in words; empty if it can.
std::string refusal(const Problem& problem) {
  const FeatureSet others = problem.features().minus(feature::dtype_fp32);
  if (!others.empty()) {
    return fmt::format(
        "{} was asked for; the ladder climbs plain fp32 attention, forward, backward "
        "and causal by itself; leave the word out.",
        others.str());
  }
  if (problem.batch != 1 || problem.num_heads_q != 1) {
    return fmt::format(
        "b{} hq{} was given; the ladder counts one head of one sequence; leave these "
        "out, and multiply its counts by {}.",
        problem.batch, problem.num_heads_q, problem.batch * problem.num_heads_q);
  }
  if (problem.seqlen_q != problem.seqlen_k) {
    return fmt::format(
        "sq{} sk{} was given; the ladder takes as many query rows as keys; make them "
        "equal.",
        problem.seqlen_q, problem.seqlen_k);
  }
  return "";
}

int run_ladder(const LadderFlags& flags) {
  if (flags.device == "cuda") {
    return fail(
        "ladder: --device cuda was given, but the ladder's programs count on the cpu only; "
        "leave the flag out.");
  }
  if (flags.device != "cpu") {
    return fail(fmt::format(
        "ladder: --device {} was given; only cpu is allowed; leave the flag out.", flags.device));
  }
  std::vector<std::string> problems = problems_from_words(flags.words);
  if (problems.empty()) problems.emplace_back(kDefaultProblem);
  if (problems.size() > 1) {
    return fail(
        fmt::format("ladder: {} problems were given, '{}' and more; one is allowed; run it once "
                    "for each.",
                    problems.size(), problems[0]));
  }
  const Result<Problem> parsed = Problem::parse(problems[0]);
  if (!parsed.ok()) return fail(parsed.status());
  const Problem& problem = parsed.value();
  if (const Status status = problem.validate(); !status.ok()) return fail(status);
  if (const std::string reason = refusal(problem); !reason.empty())
    return fail("ladder: " + reason);

  ClimbOptions options;
  options.head = {problem.seqlen_q, problem.head_dim, problem.scale()};
  options.fast_memory_bytes = flags.fast_memory_bytes;
  const bool shows_progress = isatty(STDERR_FILENO) == 1;
  if (shows_progress) {
    options.on_rung = [](std::string_view rung) { fmt::print(stderr, "\r\033[K{} ...", rung); };
  }
  const Result<Climb> climb = ladder::climb(options);
  if (shows_progress) fmt::print(stderr, "\r\033[K");
  if (!climb.ok()) return fail(climb.status());
  const auto print = flags.json ? print_ladder_json : print_ladder_text;
  print(problem, flags.fast_memory_bytes, climb.value());
  bool all_pass = true;
  for (const Check& check : climb.value().checks) all_pass = all_pass && check.passes();
  return all_pass ? kExitOk : kExitCheckFailed;
}

}  // namespace

Action declare_ladder(CLI::App& app) {
  auto flags = std::make_shared<LadderFlags>();
  app.add_option("problem", flags->words,
                 fmt::format("one head, e.g. \"{}\" (the default)", kDefaultProblem));
  app.add_option("--fast-memory", flags->fast_memory_bytes,
                 "bytes of fast memory (default 196608)");
  app.add_flag("--json", flags->json, "one JSON object a line");
  app.add_option("--device", flags->device, "cpu; the ladder does not run elsewhere");
  app.footer(
      "Exit code 1 if a count differs from its formula. Example:\n"
      "  sirdar ladder \"fwd sq512 sk512 d32\" --fast-memory 16384");
  return [flags] { return run_ladder(*flags); };
}

}  // namespace sirdar::cli
