// Lines of tests that choose a kernel's knobs: "PROBLEM | name=value name=value".
#pragma once

#include <sirdar/plan.hpp>

#include <sstream>
#include <string>
#include <utility>

namespace sirdar::test {

inline std::pair<std::string, PlanOptions> with_knobs(const std::string& line) {
  const size_t bar = line.find(" | ");
  PlanOptions options;
  if (bar == std::string::npos) return {line, options};
  std::istringstream words(line.substr(bar + 3));
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    options.knobs.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return {line.substr(0, bar), options};
}

}  // namespace sirdar::test
