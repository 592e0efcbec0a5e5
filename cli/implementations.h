// The implementations as a command line asks for them.
#pragma once

#include <sirdar/plan.hpp>

#include <string>
#include <vector>

namespace sirdar::cli {

// Names of all implementations, or of those that `backend` means: a name, or its first part ("cpu"
// for "cpu.forward").
Result<std::vector<std::string>> implementation_names(const std::optional<std::string>& backend);

// Where an implementation runs: the first GPU for cuda's, this machine's CPU for all others.
Result<Device> device_of(const std::string& implementation);

// Empty when `implementation` serves the problem, else its reason.
Result<std::string> refusal(const Problem& problem, const std::string& implementation);

// A plan on this machine; where there is none the message names flags.
Result<Plan> plan_in_flag_terms(const Problem& problem, const PlanOptions& options);
// The same on the device_of(where).
Result<Plan> plan_in_flag_terms(const Problem& problem, const PlanOptions& options,
                                const std::string& where);

// Every text as a valid problem, or the first that is not one.
Result<std::vector<Problem>> parse_problems(const std::vector<std::string>& words);
// The same, where words may also name suites: files (*.txt) with one problem a line, # for
// comments.
Result<std::vector<Problem>> read_problems(const std::vector<std::string>& words);

}  // namespace sirdar::cli
