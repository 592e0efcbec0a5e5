// sirdar ladder: attention from the naive softmax to FlashAttention-2 on the counted machine, side
// by side, and every count beside its formula; on a GPU, FlashAttention-3's stages.
#include <sirdar/problem.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "commands.h"
#include "flag_terms.h"
#include "kernel_ladder.h"
#include "ladder_report.h"
#include "parse.h"
#include "reference/ladder/climb.h"

#include <CLI/CLI.hpp>

namespace sirdar::cli {
namespace {

using namespace sirdar::ladder;

struct LadderFlags {
  std::vector<std::string> words;
  std::optional<std::string> fast_memory, device;
  bool compile_only = false, json = false;
};

constexpr int64_t kFastMemoryBytes = 196608;  // one A100 multiprocessor
constexpr const char* kDefaultProblem = "fwd sq1024 sk1024 d64";
constexpr const char* kDefaultKernelProblem = "fwd b2 s8192 h16 d128 bf16";

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

Result<Problem> one_problem(const LadderFlags& flags, const char* otherwise) {
  std::vector<std::string> problems = problems_from_words(flags.words);
  if (problems.empty()) problems.emplace_back(otherwise);
  if (problems.size() > 1) {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("ladder: {} problems were given, '{}' and more; one is allowed; run it once "
                    "for each.",
                    problems.size(), problems[0]));
  }
  Result<Problem> problem = Problem::parse(problems[0]);
  if (!problem.ok()) return problem;
  if (Status status = problem.value().validate(); !status.ok()) return status;
  return problem;
}

int run_kernel_ladder(const LadderFlags& flags) {
  if (flags.fast_memory) {
    return fail(
        "ladder: --fast-memory was given with --device cuda, where nothing is counted; leave one "
        "of them out.");
  }
  const Result<Problem> problem = one_problem(flags, kDefaultKernelProblem);
  if (!problem.ok()) return fail(problem.status());
  if (const std::string reason = kernel_ladder_refusal(problem.value()); !reason.empty())
    return fail("ladder: " + reason);
  KernelLadderOptions options;
  options.compile_only = flags.compile_only;
  const bool shows_progress = isatty(STDERR_FILENO) == 1;
  if (shows_progress) {
    options.on_step = [](std::string_view step) { say(fmt::format("\r\033[K{} ...", step)); };
  }
  const auto rungs = climb_kernels(problem.value(), options);
  if (shows_progress) say("\r\033[K");
  if (!rungs.ok()) return fail(rungs.status());
  const auto print = flags.json ? print_kernels_json : print_kernels;
  print(problem.value(), rungs.value(), options);
  bool all_pass = true;
  for (const KernelRung& rung : rungs.value()) {
    all_pass =
        all_pass && rung.fault.empty() && (!rung.is_product || rung.kernel->report.remarks.empty());
  }
  return all_pass ? kExitOk : kExitCheckFailed;
}

int run_ladder(const LadderFlags& flags) {
  const Result<std::string> device = parse_word("--device", flags.device, "cpu");
  if (!device.ok()) return fail(device.status());
  if (device.value() == "cuda") return run_kernel_ladder(flags);
  if (device.value() != "cpu") {
    return fail(
        fmt::format("ladder: --device {} was given; cpu and cuda are allowed; use one of them.",
                    device.value()));
  }
  if (flags.compile_only) {
    return fail(
        "ladder: --compile-only was given without --device cuda, where there is something to "
        "compile; add that, or leave the flag out.");
  }
  const Result<Problem> parsed = one_problem(flags, kDefaultProblem);
  if (!parsed.ok()) return fail(parsed.status());
  const Problem& problem = parsed.value();
  if (const std::string reason = refusal(problem); !reason.empty())
    return fail("ladder: " + reason);

  const Result<int64_t> fast_memory = parse_integer(
      "--fast-memory", flags.fast_memory.value_or(fmt::to_string(kFastMemoryBytes)), 1);
  if (!fast_memory.ok()) return fail(fast_memory.status());
  ClimbOptions options;
  options.head = {problem.seqlen_q, problem.head_dim, problem.scale()};
  options.fast_memory_bytes = fast_memory.value();
  const bool shows_progress = isatty(STDERR_FILENO) == 1;
  if (shows_progress) {
    options.on_rung = [](std::string_view rung) { say(fmt::format("\r\033[K{} ...", rung)); };
  }
  const Result<Climb> climb = ladder::climb(options);
  if (shows_progress) say("\r\033[K");
  if (!climb.ok()) {
    const Status& status = climb.status();
    return fail(status.argument() == "fast_memory" ? in_flag_terms(status) : status);
  }
  const auto print = flags.json ? print_ladder_json : print_ladder_text;
  print(problem, fast_memory.value(), climb.value());
  bool all_pass = true;
  for (const Check& check : climb.value().checks) all_pass = all_pass && check.passes();
  return all_pass ? kExitOk : kExitCheckFailed;
}

}  // namespace

Action declare_ladder(CLI::App& app) {
  auto flags = std::make_shared<LadderFlags>();
  app.add_option("PROBLEM", flags->words,
                 fmt::format("a problem string (default '{}')", kDefaultProblem))
      ->type_name("");
  app.add_option("--fast-memory", flags->fast_memory, "bytes of fast memory (default 196608)")
      ->type_name("BYTES");
  add_switch(app, "--json", flags->json, "one JSON object a line");
  app.add_option("--device", flags->device,
                 "cpu (default): counted programs; cuda: the stages of the Hopper kernel, timed")
      ->type_name("NAME");
  add_switch(app, "--compile-only", flags->compile_only,
             "with --device cuda: compile the stages, which needs no GPU");
  app.footer(fmt::format(
      "Exit code 1 if a count differs from its formula, a kernel's result from float64, or "
      "the\nassembler makes the product's kernel wait.\nWith --device cuda the default problem is "
      "'{}'. Examples:\n"
      "  sirdar ladder \"fwd sq512 sk512 d32\" --fast-memory 16384\n"
      "  sirdar ladder \"fwd b2 s8192 h16 d128 bf16 causal\" --device cuda",
      kDefaultKernelProblem));
  return [flags] { return run_ladder(*flags); };
}

}  // namespace sirdar::cli
