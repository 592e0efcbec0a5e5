// (Problem, PlanOptions, Device) -> Plan, or every refusal. Depends on nothing else but
// the switches of the environment.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>

#include "core/device.h"
#include "core/environment.h"
#include "core/log.h"
#include "core/suggest.h"
#include "plan/implementation.h"

namespace sirdar {
namespace {

Status invalid(std::string_view argument, std::string message) {
  return Status(StatusCode::invalid_argument, fmt::format("{}: {}", argument, message),
                std::string(argument));
}

std::vector<std::string_view> implementation_names() {
  std::vector<std::string_view> names;
  for (const Implementation* one : implementations()) names.push_back(one->name);
  return names;
}

Status check_name(std::string_view name, std::string_view argument) {
  const std::vector<std::string_view> names = implementation_names();
  std::string known;
  for (const std::string_view one : names) {
    if (one == name) return {};
    known += (known.empty() ? "" : ", ") + std::string(one);
  }
  if (parse_isa(name).ok())
    return invalid(argument, fmt::format("'{}' is an instruction set, not an implementation; use "
                                         "one of {}, and the option isa for it.",
                                         name, known));
  return invalid(argument, fmt::format("'{}' is not an implementation; use one of {}{}",
                                       shortened(name), known, suggestion_or_stop(name, names)));
}

// The last of two values would win without a word, and a knob over the option of its name.
Status check_knobs(const PlanOptions& options, const Device& device) {
  for (size_t i = 0; i < options.knobs.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const auto &first = options.knobs[j], &second = options.knobs[i];
      if (first.first == second.first)
        return invalid(
            "knobs",
            fmt::format("'{}' is given twice, as '{}' and as '{}'; give it once.",
                        shortened(first.first), shortened(first.second), shortened(second.second)));
    }
  }
  if (device.kind != DeviceKind::cpu) return {};
  const std::pair<std::string_view, std::string> chosen[] = {
      {"isa", options.isa},
      {"num_threads", options.num_threads > 0 ? fmt::to_string(options.num_threads) : ""}};
  for (const auto& [name, value] : chosen) {
    for (const auto& [knob, other] : options.knobs) {
      if (knob == name && !value.empty() && value != other)
        return invalid("knobs", fmt::format("'{}' is given twice, as the option '{}' and as the "
                                            "knob '{}'; give it once.",
                                            name, shortened(value), shortened(other)));
    }
  }
  return {};
}

// The device as the options narrow it: implementations look at one set of facts.
Result<Device> narrowed(const Device& device, const PlanOptions& options) {
  Device result = device;
  if (!options.isa.empty()) {
    const Result<Isa> isa = parse_isa(options.isa);
    if (!isa.ok()) return isa.status();
    if (device.kind != DeviceKind::cpu)
      return invalid("isa", fmt::format("'{}' chooses CPU instructions and {} is a GPU; leave isa "
                                        "empty.",
                                        options.isa, device.name));
    if (!isa_runs_on(isa.value(), device.isa))
      return invalid("isa",
                     fmt::format("'{}' does not run on {}, whose best is {}; leave isa empty "
                                 "for the best.",
                                 options.isa, device.name, name_of(device.isa)));
    result.isa = isa.value();
  }
  constexpr int kMaxThreads = 4096;
  if (options.num_threads < 0 || options.num_threads > kMaxThreads)
    return invalid("num_threads", fmt::format("{} is not from 0 (as many as the device has) to {}.",
                                              options.num_threads, kMaxThreads));
  if (options.num_threads > 0) result.num_threads = options.num_threads;
  if (options.executor != nullptr && options.executor->parallel_for == nullptr)
    return invalid("executor", "its parallel_for is null; set it, or leave executor null.");
  return result;
}

struct Request {
  const Problem& problem;
  const Device& device;
  const PlanOptions& options;
};

// Why `one` does not serve the request, or its config.
Result<Config> consider(const Implementation& one, const Request& request) {
  const auto refuse = [](std::string reason) {
    return Status(StatusCode::unsupported, std::move(reason));
  };
  if (one.is_reference && request.options.implementation.empty() &&
      !request.options.allow_reference)
    return refuse("runs only when named or when allow_reference is set");
  const FeatureSet foreign = request.problem.features().minus(one.understands);
  if (!foreign.empty()) return refuse(fmt::format("does not understand {}", foreign.str()));
  if (Status status = one.supports(request.problem, request.device); !status.ok()) return status;
  return one.configure(request.problem, request.device, request.options);
}

std::string listed(const std::vector<Refusal>& refusals) {
  std::string text;
  for (const Refusal& refusal : refusals)
    text +=
        fmt::format("{}{}: {}", text.empty() ? "" : "; ", refusal.implementation, refusal.reason);
  return text.empty() ? "this build has none" : text;
}

// What of the options means nothing to the reference.
std::string ignored_options(const PlanOptions& options) {
  std::vector<std::string_view> names;
  if (!options.isa.empty()) names.push_back("isa");
  if (options.num_threads > 0) names.push_back("num_threads");
  if (options.executor != nullptr) names.push_back("executor");
  if (names.empty()) return "";
  return fmt::format(" and takes no notice of {}", fmt::join(names, " and "));
}

void say_fallback(const Plan::State& state) {
  log_once(
      LogLevel::notice, "fallback: " + state.problem.str(),
      fmt::format("'{}' is computed by the float64 reference, which is slow{}, because "
                  "nothing faster serves it ({}).",
                  state.problem.str(), ignored_options(state.options), listed(state.refusals)));
}

// The options as the planner acts on them: SIRDAR_FORCE stands in for a name that is not given.
Result<std::string> forced_name(const PlanOptions& options) {
  std::string_view argument = "implementation";
  std::string name = options.implementation;
  if (const char* forced = std::getenv("SIRDAR_FORCE"); name.empty() && forced != nullptr) {
    name = forced;
    argument = "SIRDAR_FORCE";
  }
  if (name.empty()) return name;
  if (Status status = check_name(name, argument); !status.ok()) return status;
  return name;
}

}  // namespace

Result<Plan> create_plan(const Problem& problem, const PlanOptions& options, const Device& device,
                         std::vector<Refusal>& refusals) {
  if (Status status = problem.validate(); !status.ok()) return status;
  if (Status status = check_environment(); !status.ok()) return status;
  if (Status status = check_knobs(options, device); !status.ok()) return status;
  const Result<std::string> forced = forced_name(options);
  if (!forced.ok()) return forced.status();
  const Result<Device> facts = narrowed(device, options);
  if (!facts.ok()) return facts.status();

  auto state = std::make_shared<Plan::State>();
  state->problem = problem;
  state->device = facts.value();
  state->options = options;
  state->options.implementation = forced.value();
  const Request request{state->problem, state->device, state->options};
  for (const Implementation* one : implementations()) {
    if (!forced.value().empty() && one->name != forced.value()) continue;
    const Result<Config> config = consider(*one, request);
    if (!config.ok()) {
      // A knob or option that an otherwise willing implementation rejects is the caller's mistake.
      if (config.status().code() != StatusCode::unsupported) return config.status();
      refusals.push_back({std::string(one->name), config.status().message()});
      continue;
    }
    state->refusals = refusals;
    state->implementation = one;
    state->name = one->name;
    state->config = config.value();
    if (one->prepare != nullptr) state->prepared = one->prepare(problem);
    state->workspace_bytes = one->workspace_bytes(problem, state->config);
    if (one->is_reference && forced.value().empty()) say_fallback(*state);
    return Plan(std::move(state));
  }
  return Status(
      StatusCode::unsupported,
      fmt::format("problem: '{}' is not served on {} by any implementation that may run ({}).",
                  problem.str(), state->device.name, listed(refusals)),
      "problem");
}

Result<KernelsOf> kernels_of(const Problem& problem, const Device& device) {
  if (Status status = problem.validate(); !status.ok()) return status;
  const PlanOptions options;
  const Request request{problem, device, options};
  std::vector<Refusal> refusals;
  for (const Implementation* one : implementations()) {
    if (one->kernels == nullptr) continue;
    const Result<Config> config = consider(*one, request);
    if (!config.ok()) {
      refusals.push_back({std::string(one->name), config.status().message()});
      continue;
    }
    Result<std::vector<KernelSource>> sources = one->kernels(problem, config.value());
    if (!sources.ok()) return sources.status();
    return KernelsOf{std::string(one->name), std::move(sources).value()};
  }
  return Status(StatusCode::unsupported,
                fmt::format("problem: '{}' has no kernel that is compiled at run time on {} ({}).",
                            problem.str(), device.name, listed(refusals)),
                "problem");
}

Result<Plan> Plan::create(const Problem& problem, const PlanOptions& options,
                          const Device& device) {
  std::vector<Refusal> refusals;
  return create_plan(problem, options, device, refusals);
}

}  // namespace sirdar
