// explain: what would run, how, and why nothing else.
#include "commands.h"
#include "flag_terms.h"
#include "implementations.h"
#include "input_tensors.h"
#include "io/output_files.h"
#include "parse.h"
#include "plan/cost.h"
#include "plan/implementation.h"
#include "plan/tiles.h"
#include "tile_map.h"

#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

namespace sirdar::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ExplainFlags {
  std::vector<std::string> words;
  std::optional<std::string> device, svg, tile, sequence, head;
  std::vector<std::string> tensor, scalar;
  bool is_json = false;
};

// What the picture needs besides the problem.
struct Picture {
  InputTensors files;
  ExpressionData data;
  std::optional<TileSize> tile;
};

struct Decision {
  Problem problem;
  Device device;
  std::optional<Plan> plan;
  std::vector<Refusal> refusals;
  bool is_host = false;  // planned for the CPU because no other device was named
};

// The tiles of the plan, where its config has them; else tiles to draw with.
TileSize tiles_of_plan(const Decision& decision) {
  return tile_size(decision.plan ? decision.plan->config() : "");
}

Json tiles_of(const Decision& decision) {
  const auto [block_m, block_n] = tiles_of_plan(decision);
  const std::optional<TileCounts> counts = count_tiles(decision.problem, block_m, block_n);
  if (!counts) return nullptr;
  return {{"block_m", block_m},   {"block_n", block_n},  {"empty", counts->none},
          {"part", counts->part}, {"full", counts->all}, {"only_data_tell", counts->unknown}};
}

// Why a plan for this machine's CPU is not one for a GPU.
std::string why_not_cuda() {
  const Result<Device> gpu = Device::cuda(0);
  if (!gpu.ok()) return "not used: " + gpu.status().message();
  return fmt::format("not used: the plan is for the CPU; --device cuda plans for {}",
                     gpu.value().name);
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
  // A bound from below: what hidden pairs would cost is none.
  json["roofline_seconds"] =
      peaks && cost.is_exact ? Json(roofline_seconds(cost, *peaks)) : Json(nullptr);
  json["cuda"] = decision.is_host ? Json(why_not_cuda()) : Json(nullptr);
  json["refusals"] = Json::array();
  for (const Refusal& refusal : decision.refusals) {
    json["refusals"].push_back(
        {{"implementation", refusal.implementation}, {"reason", refusal.reason}});
  }
  return json;
}

std::string as_text(const Decision& decision) {
  const std::string cuda =
      decision.is_host ? fmt::format("cuda            {}\n", why_not_cuda()) : std::string();
  if (decision.plan) return decision.plan->explain() + cuda;
  std::string text = fmt::format("problem         {}\ndevice          {}\nimplementation  none\n",
                                 decision.problem.str(), decision.device.name);
  for (const Refusal& refusal : decision.refusals) {
    text += fmt::format("refused         {}: {}\n", refusal.implementation, refusal.reason);
  }
  return text + cuda;
}

// "M,N"
Result<TileSize> parse_tile(const std::string& text) {
  const size_t comma = text.find(',');
  if (comma == std::string::npos)
    return bad_flag("--tile", fmt::format("'{}' is not M,N: query rows and keys.", text));
  const auto m = parse_integer("--tile", text.substr(0, comma), 1, 1 << 20);
  if (!m.ok()) return m.status();
  const auto n = parse_integer("--tile", text.substr(comma + 1), 1, 1 << 20);
  if (!n.ok()) return n.status();
  return TileSize{m.value(), n.value()};
}

// One of `count`, where the flag is given.
Status read_index(std::string_view flag, const std::optional<std::string>& text, int64_t count,
                  std::optional<int64_t>& index) {
  if (!text) return {};
  if (count == 0) return bad_flag(flag, "the problem has none to draw; leave it out.");
  const auto value = parse_integer(flag, *text, 0, count - 1);
  if (value.ok()) index = value.value();
  return value.status();
}

Status read_tensor(const std::string& text, const Problem& problem, Picture& picture) {
  const auto assignment = parse_assignment("--tensor", text, "F");
  if (!assignment.ok()) return assignment.status();
  const auto& [name, file] = assignment.value();
  const auto declared = std::ranges::find(problem.tensors, name, &ExpressionTensor::name);
  if (declared == problem.tensors.end()) {
    return bad_flag("--tensor", fmt::format("'{}' is not a tensor of the problem; declare it by "
                                            "tensor:{}:DTYPE:RANK.",
                                            name, name));
  }
  if (std::ranges::find(picture.data.tensors, name, &NamedTensor::name) !=
      picture.data.tensors.end())
    return bad_flag("--tensor", fmt::format("'{}' is given twice; give it once.", name));
  TensorView view;
  Status status = picture.files.read("--tensor", file, Role::expression, {1, 2, 3, 4}, view);
  if (!status.ok()) return status;
  if (view.dtype != declared->dtype || view.rank != declared->rank) {
    return bad_flag("--tensor",
                    fmt::format("'{}' is {} of rank {} in the file and {} of rank {} in the "
                                "problem; make them agree.",
                                name, name_of(view.dtype), view.rank, name_of(declared->dtype),
                                declared->rank));
  }
  picture.data.tensors.push_back({name, view});
  return {};
}

Status read_scalar(const std::string& text, const Problem& problem, Picture& picture) {
  const auto assignment = parse_assignment("--scalar", text, "X");
  if (!assignment.ok()) return assignment.status();
  const auto& [name, number] = assignment.value();
  if (std::ranges::find(problem.scalars, name) == problem.scalars.end()) {
    return bad_flag(
        "--scalar",
        fmt::format("'{}' is not a scalar of the problem; declare it by scalar:{}.", name, name));
  }
  for (const auto& given : picture.data.scalars)
    if (given.first == name)
      return bad_flag("--scalar", fmt::format("'{}' is given twice; give it once.", name));
  const Result<double> value = parse_double("--scalar", number);
  if (value.ok()) picture.data.scalars.emplace_back(name, value.value());
  return value.status();
}

Status read_picture(const ExplainFlags& flags, const Problem& problem, Picture& picture) {
  const bool is_unused = !flags.svg && (flags.tile || flags.sequence || flags.head ||
                                        !flags.tensor.empty() || !flags.scalar.empty());
  if (is_unused) {
    return bad_flag("--svg",
                    "is not given, and --tile, --tensor, --scalar, --sequence and --head "
                    "are for its picture; name a file.");
  }
  Status status = read_index("--sequence", flags.sequence, problem.batch, picture.data.b);
  if (status.ok()) status = read_index("--head", flags.head, problem.num_heads_q, picture.data.h);
  for (const std::string& text : flags.tensor)
    if (status.ok()) status = read_tensor(text, problem, picture);
  for (const std::string& text : flags.scalar)
    if (status.ok()) status = read_scalar(text, problem, picture);
  if (!status.ok() || !flags.tile) return status;
  const Result<TileSize> tile = parse_tile(*flags.tile);
  if (tile.ok()) picture.tile = tile.value();
  return tile.status();
}

Status write_svg(const Decision& decision, const std::string& path, const Picture& picture,
                 const std::function<Status()>& before_moving) {
  constexpr int64_t kMaxCells = 128;
  const TileSize tile = picture.tile.value_or(tiles_of_plan(decision));
  const TileMap map = tile_map(decision.problem, tile, kMaxCells, picture.data);
  const std::string svg = tile_map_svg(map, decision.problem.str());
  const io::OutputFile file{"--svg", path, {std::as_bytes(std::span(svg))}};
  Status status = io::write_files({&file, 1}, before_moving);
  if (status.ok() && !map.unknown.empty()) {
    notice(fmt::format("{}: not drawn, because only the data tell: {}.", path,
                       fmt::join(map.unknown, "; ")));
  }
  return status;
}

int explain(const ExplainFlags& flags) {
  const Result<std::vector<Problem>> problems = parse_problems(flags.words);
  if (!problems.ok()) return fail(problems.status());
  if (problems.value().size() != 1) {
    return fail(
        fmt::format("PROBLEM: {} problems are given; explain takes one.", problems.value().size()));
  }
  const Result<std::string> name = parse_word("--device", flags.device, "host");
  if (!name.ok()) return fail(name.status());
  const Result<Device> device = Device::named(name.value());
  if (!device.ok()) return fail(in_flag_terms(device.status()));
  if (flags.svg && flags.svg->empty()) return fail("--svg: is empty; name a file.");

  Decision decision{
      problems.value().front(), device.value(), std::nullopt, {}, name.value() == "host"};
  if (Status status = decision.problem.validate(); !status.ok()) return fail(status);
  Picture picture;
  if (Status status = read_picture(flags, decision.problem, picture); !status.ok())
    return fail(status);
  PlanOptions options;
  options.allow_reference = true;
  const Silence silence;
  const Result<Plan> plan =
      create_plan(decision.problem, options, decision.device, decision.refusals);
  if (plan.ok()) decision.plan = plan.value();
  // No implementation is an answer too; anything else is a mistake in what was asked.
  if (!plan.ok() && plan.status().code() != StatusCode::unsupported) return fail(plan.status());
  const auto print = [&] {
    fmt::print("{}", flags.is_json ? as_json(decision).dump(2) + "\n" : as_text(decision));
    return flush_output();
  };
  const Status status = flags.svg ? write_svg(decision, *flags.svg, picture, print) : print();
  return status.ok() ? kExitOk : fail(status);
}

}  // namespace

Action declare_explain(CLI::App& app) {
  auto flags = std::make_shared<ExplainFlags>();
  app.add_option("PROBLEM", flags->words, "a problem string, quoted or not")->type_name("");
  app.add_option("--device", flags->device,
                 "host (default), cuda, cuda:1, or a recorded machine, like h200")
      ->type_name("NAME");
  add_switch(app, "--json", flags->is_json, "the decision as a JSON object");
  app.add_option("--svg", flags->svg, "draw the tiles: empty, part, full")->type_name("F");
  app.add_option("--tile", flags->tile, "query rows and keys of a drawn tile (default: the plan's)")
      ->type_name("M,N");
  app.add_option("--tensor", flags->tensor, "a tensor that the drawn mask_mod reads")
      ->type_name("NAME=F");
  app.add_option("--scalar", flags->scalar, "a number that the drawn mask_mod reads")
      ->type_name("NAME=X");
  app.add_option("--sequence", flags->sequence, "the sequence to draw, from 0")->type_name("B");
  app.add_option("--head", flags->head, "the query head to draw, from 0")->type_name("H");
  app.footer(
      "Examples:\n"
      "  sirdar explain 'fwd b2 sq4096 sk4096 hq32 hkv8 d128 bf16 causal'\n"
      "  sirdar explain fwd s1000 d64 window:100,0 --svg tiles.svg\n"
      "  sirdar explain 'fwd s512 h4 mask_mod:\"q_pos - k < width[h]\" tensor:width:int32:1' \\\n"
      "    --svg tiles.svg --tile 16,16 --tensor width=width.npy --head 2\n"
      "  sirdar explain fwd s4096 d128 bf16 --device h200 --json");
  return [flags] { return explain(*flags); };
}

}  // namespace sirdar::cli
