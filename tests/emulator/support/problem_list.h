// The problems that the product's kernels run on the emulated machine, a line each of a file of
// tests/emulator.
#pragma once

#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/sm90/forward/config.h"
#include "plan/implementation.h"
#include "support/knobs.h"

namespace sirdar::emulator_tests {

struct ListedProblem {
  std::string text;
  bool is_everyday;  // otherwise only when everything runs; a line that begins with "+"
};

inline std::vector<ListedProblem> listed_problems(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<ListedProblem> problems;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const bool is_long = line[0] == '+';
    problems.push_back({is_long ? line.substr(1) : line, !is_long});
  }
  return problems;
}

// What an implementation of the library is for a problem on an H200.
struct ListedKernels {
  Problem problem;
  Config config;
  std::vector<KernelSource> sources;  // in the order of their launches
};

inline Result<ListedKernels> listed_kernels(const std::string& text,
                                            const std::string& implementation) {
  auto [problem_text, options] = test::with_knobs(text);
  const Result<Problem> problem = Problem::parse(problem_text);
  if (!problem.ok()) return problem.status();
  if (Status status = problem.value().validate(); !status.ok()) return status;
  const Device device = Device::named("h200").value();
  options.implementation = implementation;
  for (const Implementation* one : implementations()) {
    if (one->name != implementation) continue;
    if (Status status = one->supports(problem.value(), device); !status.ok()) return status;
    const Result<Config> config = one->configure(problem.value(), device, options);
    if (!config.ok()) return config.status();
    Result<std::vector<KernelSource>> sources = one->kernels(problem.value(), config.value());
    if (!sources.ok()) return sources.status();
    return ListedKernels{problem.value(), config.value(), sources.value()};
  }
  return Status(StatusCode::internal, implementation + " is not registered");
}

struct ForwardKernels {
  Problem problem;
  sm90::ForwardConfig config;
  std::vector<KernelSource> sources;  // as launched, the forward last
};

inline Result<ForwardKernels> forward_kernels(const std::string& text) {
  const Result<ListedKernels> found = listed_kernels(text, "cuda.sm90.forward");
  if (!found.ok()) return found.status();
  const ListedKernels& kernels = found.value();
  return ForwardKernels{kernels.problem, kernels.config.as<sm90::ForwardConfig>(), kernels.sources};
}

// Two sources of one key are one kernel.
inline std::string key_of(const KernelSource& source) {
  return source.function + " " + source.config_text + "\n" + source.definitions;
}

}  // namespace sirdar::emulator_tests
