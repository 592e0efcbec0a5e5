#include "implementations.h"

#include "commands.h"
#include "parse.h"
#include "plan/implementation.h"

#include <fmt/format.h>

namespace sirdar::cli {

Result<std::vector<std::string>> implementation_names(const std::optional<std::string>& backend) {
  std::vector<std::string> names, all;
  for (const Implementation* one : implementations()) {
    all.emplace_back(one->name);
    if (!backend || one->name == *backend || one->name.starts_with(*backend + ".")) {
      names.emplace_back(one->name);
    }
  }
  if (!names.empty() && (!backend || !backend->empty())) return names;
  return bad_flag("--backend", fmt::format("'{}' is not an implementation; use one of {}.",
                                           backend.value_or(""), fmt::join(all, ", ")));
}

Result<std::string> refusal(const Problem& problem, const std::string& implementation) {
  PlanOptions options;
  options.implementation = implementation;
  std::vector<Refusal> refusals;
  const Result<Plan> plan = create_plan(problem, options, Device::host(), refusals);
  if (plan.ok()) return std::string();
  if (refusals.empty()) return plan.status();
  return refusals.back().reason;
}

Result<std::vector<Problem>> parse_problems(const std::vector<std::string>& words) {
  std::vector<Problem> problems;
  for (const std::string& text : problems_from_words(words)) {
    Result<Problem> problem = Problem::parse(text);
    if (!problem.ok()) return problem.status();
    if (Status status = problem.value().validate(); !status.ok()) return status;
    problems.push_back(std::move(problem).value());
  }
  if (!problems.empty()) return problems;
  return bad_flag("PROBLEM", "is missing; give one like 'fwd b1 sq128 sk128 hq4 hkv4 d64 causal'.");
}

}  // namespace sirdar::cli
