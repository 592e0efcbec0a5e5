// explain: what would run, how, and why nothing else.
#include "commands.h"
#include "implementations.h"
#include "io/output_files.h"
#include "parse.h"
#include "plan/cost.h"
#include "plan/implementation.h"
#include "tile_map.h"

#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

namespace sirdar::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ExplainFlags {
  std::vector<std::string> words;
  std::optional<std::string> device, svg;
  bool is_json = false;
};

struct Decision {
  Problem problem;
  Device device;
  std::optional<Plan> plan;
  std::vector<Refusal> refusals;
};

// The tile sizes of the plan, where its config has them; else a size to draw with.
int64_t tile_size(const Decision& decision, std::string_view field) {
  constexpr int64_t kDefault = 64;
  if (!decision.plan) return kDefault;
  const std::string config = " " + decision.plan->config();
  const size_t at = config.find(fmt::format(" {}=", field));
  if (at == std::string::npos) return kDefault;
  const size_t begin = at + field.size() + 2;
  const std::string value = config.substr(begin, config.find(' ', begin) - begin);
  const Result<int64_t> size = parse_integer(field, value, 1);
  return size.ok() ? size.value() : kDefault;
}

Json tiles_of(const Decision& decision) {
  const int64_t block_m = tile_size(decision, "block_m"), block_n = tile_size(decision, "block_n");
  const std::optional<TileCounts> counts = count_tiles(decision.problem, block_m, block_n);
  if (!counts) return nullptr;
  return {{"block_m", block_m},
          {"block_n", block_n},
          {"empty", counts->none},
          {"part", counts->part},
          {"full", counts->all}};
}

Json as_json(const Decision& decision) {
  const Cost cost = cost_of(decision.problem);
  Json json;
  json["problem"] = decision.problem.str();
  json["device"] = decision.device.name;
  json["chosen"] = decision.plan ? Json(decision.plan->name()) : Json(nullptr);
  json["config"] = decision.plan ? Json(decision.plan->config()) : Json(nullptr);
  json["workspace_bytes"] = decision.plan ? Json(decision.plan->workspace_bytes()) : Json(nullptr);
  json["flops"] = cost.flops;
  json["bytes"] = cost.bytes();
  json["is_exact"] = cost.is_exact;
  json["tiles"] = tiles_of(decision);
  const auto peaks = recorded_peaks(decision.device, decision.problem.dtype_q);
  json["roofline_seconds"] = peaks ? Json(roofline_seconds(cost, *peaks)) : Json(nullptr);
  json["refusals"] = Json::array();
  for (const Refusal& refusal : decision.refusals) {
    json["refusals"].push_back(
        {{"implementation", refusal.implementation}, {"reason", refusal.reason}});
  }
  return json;
}

std::string as_text(const Decision& decision) {
  if (decision.plan) return decision.plan->explain();
  std::string text = fmt::format("problem         {}\ndevice          {}\nimplementation  none\n",
                                 decision.problem.str(), decision.device.name);
  for (const Refusal& refusal : decision.refusals) {
    text += fmt::format("refused         {}: {}\n", refusal.implementation, refusal.reason);
  }
  return text;
}

Status write_svg(const Decision& decision, const std::string& path) {
  constexpr int64_t kMaxCells = 128;
  const TileMap map = tile_map(decision.problem, tile_size(decision, "block_m"),
                               tile_size(decision, "block_n"), kMaxCells);
  const std::string svg = tile_map_svg(map, decision.problem.str());
  if (!map.unknown.empty()) {
    notice(fmt::format("{}: not drawn, because only the data tell: {}.", path,
                       fmt::join(map.unknown, "; ")));
  }
  const io::OutputFile file{path, {std::as_bytes(std::span(svg))}};
  return io::write_files({&file, 1});
}

int explain(const ExplainFlags& flags) {
  const Result<std::vector<Problem>> problems = parse_problems(flags.words);
  if (!problems.ok()) return fail(problems.status());
  if (problems.value().size() != 1) {
    return fail(
        fmt::format("PROBLEM: {} problems are given; explain takes one.", problems.value().size()));
  }
  const Result<Device> device = Device::named(flags.device.value_or("host"));
  if (!device.ok()) return fail(device.status());
  if (flags.svg && flags.svg->empty()) return fail("--svg: is empty; name a file.");

  Decision decision{problems.value().front(), device.value(), std::nullopt, {}};
  PlanOptions options;
  options.allow_reference = true;
  const Silence silence;
  const Result<Plan> plan =
      create_plan(decision.problem, options, decision.device, decision.refusals);
  if (plan.ok()) decision.plan = plan.value();
  // No implementation is an answer too; anything else is a mistake in what was asked.
  if (!plan.ok() && plan.status().code() != StatusCode::unsupported) return fail(plan.status());
  if (flags.svg) {
    if (Status status = write_svg(decision, *flags.svg); !status.ok()) return fail(status);
  }
  fmt::print("{}", flags.is_json ? as_json(decision).dump(2) + "\n" : as_text(decision));
  return kExitOk;
}

}  // namespace

Action declare_explain(CLI::App& app) {
  auto flags = std::make_shared<ExplainFlags>();
  app.add_option("PROBLEM", flags->words, "a problem string, quoted or not")->type_name("");
  app.add_option("--device", flags->device, "host (default) or a recorded machine, like h200")
      ->type_name("NAME");
  app.add_flag("--json", flags->is_json, "the decision as a JSON object");
  app.add_option("--svg", flags->svg, "draw the tiles: empty, part, full")->type_name("F");
  app.footer(
      "Examples:\n"
      "  sirdar explain 'fwd b2 sq4096 sk4096 hq32 hkv8 d128 bf16 causal'\n"
      "  sirdar explain fwd s1000 d64 window:100,0 --svg tiles.svg\n"
      "  sirdar explain fwd s4096 d128 bf16 --device h200 --json");
  return [flags] { return explain(*flags); };
}

}  // namespace sirdar::cli
