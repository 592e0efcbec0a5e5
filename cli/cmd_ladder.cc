// sirdar ladder: attention from the naive softmax to FlashAttention-2 on the counted machine, side
// by side, and every count beside its formula.
#include <sirdar/problem.hpp>

#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "reference/ladder/climb.h"
#include "reference/ladder/published.h"

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

std::string relation_text(const Check& check) {
  switch (check.relation) {
    case Relation::equal:
      return fmt::format("= {:.15g}", check.predicted);
    case Relation::at_most:
      return fmt::format("<= {:.15g}", check.predicted);
    case Relation::less:
      return fmt::format("< {:.15g}", check.predicted);
    case Relation::between:
      return fmt::format("in [{:.15g}, {:.15g}]", check.predicted, check.upper);
  }
  return "";
}

const char* relation_name(Relation relation) {
  switch (relation) {
    case Relation::equal:
      return "equal";
    case Relation::at_most:
      return "at_most";
    case Relation::less:
      return "less";
    case Relation::between:
      return "between";
  }
  return "";
}

void print_text(const Problem& problem, const LadderFlags& flags, const Climb& climb) {
  fmt::print("{}, fast memory {} bytes (M = {} elements of 4 bytes)\n\n", problem.str(),
             flags.fast_memory_bytes, flags.fast_memory_bytes / 4);
  fmt::print("{:<4} {:<21} {:>9} {:>12} {:>11} {:>9} {:>11} {:>11} {:>9} {:>8} {:>8} {:>8}\n", "",
             "rung", "tile", "matmul FLOP", "other FLOP", "exps", "read B", "written B", "extra B",
             "fast B", "ms", "error");
  for (const Rung& rung : climb.rungs) {
    const Counts& c = rung.counts;
    const std::string tile =
        rung.blocks.block_m ? fmt::format("{}x{}", rung.blocks.block_m, rung.blocks.block_n) : "-";
    fmt::print(
        "{:<4} {:<21} {:>9} {:>12} {:>11} {:>9} {:>11} {:>11} {:>9} {:>8} {:>8.1f} {:>8.1e}\n",
        rung.system, rung.name, tile, c.matmul_flops, c.other_flops, c.exps, c.read_bytes,
        c.written_bytes, c.peak_extra_bytes, c.peak_fast_bytes, rung.seconds * 1e3, rung.max_error);
  }
  fmt::print(
      "\ntile: query rows x keys; extra: slow memory beyond inputs and outputs; error: largest\n"
      "difference from float64. Checks, counted / predicted:\n\n");
  for (const Check& check : climb.checks) {
    fmt::print("{:<6} {:<4} {}: {:.15g} {}\n", check.passes() ? "ok" : "FAILED", check.system,
               check.claim, check.counted, relation_text(check));
  }
  const PublishedTable table = evaluate_published_table();
  fmt::print(
      "\nThe published table (batch 64, 16 heads, N = 1024, d = 64, 2-byte elements, forward and\n"
      "backward) by these formulas with M = 192 KiB; docs/ladder.md discusses the differences:\n");
  fmt::print("  standard: {:.1f} GFLOP (published {}), {:.1f} GB (published {})\n",
             table.standard.gflop, table.kStandard.gflop, table.standard.gigabytes,
             table.kStandard.gigabytes);
  fmt::print("  flash:    {:.1f} GFLOP (published {}), {:.1f} GB (published {})\n",
             table.flash.gflop, table.kFlash.gflop, table.flash.gigabytes, table.kFlash.gigabytes);
}

void print_json(const Problem& problem, const LadderFlags& flags, const Climb& climb) {
  using nlohmann::ordered_json;
  const auto print = [](const ordered_json& line) { fmt::print("{}\n", line.dump()); };
  // JSON has no infinity; an error that is not finite is null.
  const auto number = [](double x) { return std::isfinite(x) ? ordered_json(x) : ordered_json(); };
  for (const Rung& rung : climb.rungs) {
    const Counts& c = rung.counts;
    print({{"kind", "rung"},
           {"problem", problem.str()},
           {"fast_memory_bytes", flags.fast_memory_bytes},
           {"system", rung.system},
           {"rung", rung.name},
           {"block_m", rung.blocks.block_m},
           {"block_n", rung.blocks.block_n},
           {"matmul_flops", c.matmul_flops},
           {"other_flops", c.other_flops},
           {"exps", c.exps},
           {"read_bytes", c.read_bytes},
           {"written_bytes", c.written_bytes},
           {"extra_bytes", c.peak_extra_bytes},
           {"fast_bytes", c.peak_fast_bytes},
           {"tiles", c.tiles},
           {"masked_tiles", c.masked_tiles},
           {"ms", rung.seconds * 1e3},
           {"max_error", number(rung.max_error)}});
  }
  for (const Check& check : climb.checks) {
    ordered_json line = {{"kind", "check"},
                         {"system", check.system},
                         {"claim", check.claim},
                         {"counted", number(check.counted)},
                         {"relation", relation_name(check.relation)},
                         {"predicted", number(check.predicted)}};
    if (check.relation == Relation::between) line["upper"] = number(check.upper);
    line["passes"] = check.passes();
    print(line);
  }
  const PublishedTable table = evaluate_published_table();
  const auto print_published = [&](const char* name, const PassCost& ours, const PassCost& theirs) {
    print({{"kind", "published"},
           {"attention", name},
           {"gflop", ours.gflop},
           {"published_gflop", theirs.gflop},
           {"gigabytes", ours.gigabytes},
           {"published_gigabytes", theirs.gigabytes}});
  };
  print_published("standard", table.standard, table.kStandard);
  print_published("flash", table.flash, table.kFlash);
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
  flags.json ? print_json(problem, flags, climb.value())
             : print_text(problem, flags, climb.value());
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
