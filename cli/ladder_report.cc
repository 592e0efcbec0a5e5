// What sirdar ladder prints.
#include "ladder_report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "reference/ladder/published.h"

namespace sirdar::cli {
namespace {

using namespace sirdar::ladder;

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

}  // namespace

void print_ladder_text(const Problem& problem, int64_t fast_memory_bytes, const Climb& climb) {
  fmt::print("{}, fast memory {} bytes (M = {} elements of 4 bytes)\n\n", problem.str(),
             fast_memory_bytes, fast_memory_bytes / 4);
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

void print_ladder_json(const Problem& problem, int64_t fast_memory_bytes, const Climb& climb) {
  using nlohmann::ordered_json;
  const auto print = [](const ordered_json& line) { fmt::print("{}\n", line.dump()); };
  // JSON has no infinity; an error that is not finite is null.
  const auto number = [](double x) { return std::isfinite(x) ? ordered_json(x) : ordered_json(); };
  for (const Rung& rung : climb.rungs) {
    const Counts& c = rung.counts;
    print({{"kind", "rung"},
           {"problem", problem.str()},
           {"fast_memory_bytes", fast_memory_bytes},
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

}  // namespace sirdar::cli
