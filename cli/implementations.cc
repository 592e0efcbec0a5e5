#include "implementations.h"

#include "commands.h"
#include "flag_terms.h"
#include "parse.h"
#include "plan/implementation.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace sirdar::cli {
namespace {

// A valid problem; `origin`, where there is one, begins the message.
Status add_problem(const std::string& text, const std::string& origin,
                   std::vector<Problem>& problems) {
  const Result<Problem> problem = Problem::parse(text);
  Status status = problem.ok() ? problem.value().validate() : problem.status();
  if (status.ok()) problems.push_back(problem.value());
  if (status.ok() || origin.empty()) return status;
  return Status(status.code(), fmt::format("{}: {}", origin, status.message()), "PROBLEM");
}

Status no_suite(const std::string& word) {
  return bad_flag("PROBLEM", fmt::format("'{}' is neither a problem string nor a suite, whose "
                                         "name ends in .txt; give one of the two.",
                                         word));
}

bool names_file(const std::string& word) {
  std::error_code error;
  return std::filesystem::exists(word, error);
}

// A suite has one problem a line; # starts a comment.
Status read_suite(const std::string& path, std::vector<Problem>& problems) {
  std::error_code error;
  const std::filesystem::file_status kind = std::filesystem::status(path, error);
  if (std::filesystem::exists(kind) && !std::filesystem::is_regular_file(kind))
    return bad_flag(
        "PROBLEM",
        fmt::format("{} is {}; name a file of problem strings.", path,
                    std::filesystem::is_directory(kind) ? "a directory" : "no regular file"));
  std::ifstream file(path);
  if (!file) {
    return bad_flag(
        "PROBLEM",
        fmt::format("the suite {} cannot be read; name a file of problem strings.", path));
  }
  const size_t before = problems.size();
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // some editors begin files so
    if (number == 1 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Status status = add_problem(line, fmt::format("{}:{}", path, number), problems);
    if (!status.ok()) return status;
  }
  if (file.bad())
    return bad_flag("PROBLEM", fmt::format("the suite {} cannot be read to its end; name a file of "
                                           "problem strings.",
                                           path));
  if (problems.size() > before) return {};
  return bad_flag(
      "PROBLEM",
      fmt::format("the suite {} has no problem in its {} line{}{}; write one a line.", path, number,
                  number == 1 ? "" : "s", number > 0 ? ", only comments and blanks" : ""));
}

}  // namespace

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

Result<Device> device_of(const std::string& implementation) {
  const auto known = [&](const Implementation* one) { return one->name == implementation; };
  const bool is_gpu = implementation == "cuda" || (implementation.starts_with("cuda.") &&
                                                   std::ranges::any_of(implementations(), known));
  return is_gpu ? Device::cuda() : Device::host();
}

Result<std::string> refusal(const Problem& problem, const std::string& implementation) {
  const Result<Device> device = device_of(implementation);
  if (!device.ok()) return device.status().message();
  PlanOptions options;
  options.implementation = implementation;
  std::vector<Refusal> refusals;
  const Result<Plan> plan = create_plan(problem, options, device.value(), refusals);
  if (plan.ok()) return std::string();
  if (refusals.empty()) return plan.status();
  return refusals.back().reason;
}

Result<Plan> plan_in_flag_terms(const Problem& problem, const PlanOptions& options) {
  return plan_in_flag_terms(problem, options, options.implementation);
}

Result<Plan> plan_in_flag_terms(const Problem& problem, const PlanOptions& options,
                                const std::string& where) {
  const bool is_reference = options.implementation == "reference";
  if (is_reference && options.num_threads > 0) {
    return bad_flag("--threads", "has no effect on the reference; leave it out.");
  }
  const Result<Device> device = device_of(where);
  if (!device.ok()) return device.status();
  std::vector<Refusal> refusals;
  Result<Plan> plan = create_plan(problem, options, device.value(), refusals);
  if (plan.ok()) return plan;
  if (plan.status().code() != StatusCode::unsupported || refusals.empty()) {
    return in_flag_terms(plan.status());
  }
  std::string reasons;
  for (const Refusal& refusal : refusals) {
    // Why the reference was passed over is said once, as what to do.
    if (refusal.implementation == "reference" && !is_reference) continue;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", refusal.implementation,
                           refusal.reason);
  }
  return bad_flag("--backend",
                  fmt::format("nothing asked for serves '{}' ({}){}.", problem.str(), reasons,
                              is_reference ? "; change the problem"
                                           : "; use --backend reference, which is "
                                             "slow, or change the problem"));
}

Result<std::vector<Problem>> parse_problems(const std::vector<std::string>& words) {
  std::vector<Problem> problems;
  for (const std::string& word : words) {
    if (word.ends_with(".txt")) {
      return bad_flag("PROBLEM",
                      fmt::format("'{}' is named like a suite, and this verb takes none; "
                                  "give its problem strings.",
                                  word));
    }
  }
  for (const std::string& text : problems_from_words(words)) {
    Result<Problem> problem = Problem::parse(text);
    if (!problem.ok()) return problem.status();
    if (Status status = problem.value().validate(); !status.ok()) return status;
    problems.push_back(std::move(problem).value());
  }
  if (!problems.empty()) return problems;
  return bad_flag("PROBLEM", "is missing; give one like 'fwd b1 sq128 sk128 hq4 hkv4 d64 causal'.");
}

Result<std::vector<Problem>> read_problems(const std::vector<std::string>& words) {
  std::vector<Problem> problems;
  std::vector<std::string> plain;
  for (const std::string& word : words) {
    if (word.ends_with(".txt")) {
      if (Status status = read_suite(word, problems); !status.ok()) return status;
    } else if (word.find('/') != std::string::npos && word.find_first_of(" :") == word.npos) {
      return no_suite(word);
    } else {
      plain.push_back(word);
    }
  }
  for (const std::string& text : problems_from_words(plain)) {
    Status status = add_problem(text, "", problems);
    if (!status.ok() && names_file(text)) return no_suite(text);
    if (!status.ok()) return status;
  }
  if (!problems.empty()) return problems;
  return bad_flag("PROBLEM",
                  "is missing; give a problem, or a suite like bench/suites/cpu_forward.txt.");
}

}  // namespace sirdar::cli
