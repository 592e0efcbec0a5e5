#include "emulator/support/planted.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <stdexcept>

namespace sirdar::emulator_tests {
namespace {

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

// The text of a line of the kernel: lines move, what stands on them less so. The second line of one
// text ends in #2, and so on.
std::string source_line(const std::string& path, unsigned line) {
  static std::map<std::string, std::vector<std::string>> files;
  std::vector<std::string>& lines = files[path];
  if (lines.empty()) {
    std::ifstream file(path);
    for (std::string text; std::getline(file, text);) lines.push_back(trimmed(text));
    if (lines.empty()) throw std::runtime_error("cannot read " + path);
  }
  if (line < 1 || line > lines.size()) return "";
  const std::string& text = lines[line - 1];
  const auto before = std::count(lines.begin(), lines.begin() + static_cast<int>(line) - 1, text);
  return before == 0 ? text : fmt::format("{} #{}", text, before + 1);
}

// What several kernels use stands in the folder above theirs.
std::string path_of(const std::string& folder, const std::string& file) {
  const std::string own = folder + "/" + file;
  return std::filesystem::exists(own) ? own : folder + "/../" + file;
}

struct Survivor {
  std::string kernel, operation, change, barrier, warpgroup, source;
};

Survivor describe(const PlantedCase& planted, const emulator::Mutation& m) {
  std::string barrier = "-";
  const std::string operation = emulator::name_of(m.op);
  if (m.key >= 0)
    barrier =
        operation.starts_with("mbarrier") ? planted.name_of_barrier(m.key) : std::to_string(m.key);
  return {planted.name,
          operation,
          emulator::name_of(m.change),
          barrier,
          m.warpgroup < 0 ? "all" : std::to_string(m.warpgroup),
          m.file + ": " + source_line(path_of(planted.source_folder, m.file), m.line)};
}

bool fits(const std::string& pattern, const std::string& text) {
  if (pattern == "*") return true;
  if (pattern.ends_with("*")) return text.starts_with(pattern.substr(0, pattern.size() - 1));
  return pattern == text;
}

bool fits(const Expectation& e, const Survivor& s) {
  return fits(e.kernel, s.kernel) && fits(e.operation, s.operation) && fits(e.change, s.change) &&
         fits(e.barrier, s.barrier) && fits(e.warpgroup, s.warpgroup) && fits(e.source, s.source);
}

}  // namespace

std::vector<Expectation> read_survivors(const std::string& path) {
  std::vector<Expectation> result;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (trimmed(line).empty() || line[0] == '#') continue;
    std::vector<std::string> fields;
    for (size_t begin = 0; begin <= line.size();) {
      const size_t bar = std::min(line.find(" | ", begin), line.size());
      fields.push_back(trimmed(line.substr(begin, bar - begin)));
      begin = bar + 3;
    }
    if (fields.size() != 7 || fields[6].size() < 10)
      throw std::runtime_error(
          fmt::format("{}:{}: six fields and a reason are needed", path, number));
    result.push_back(
        {fields[0], fields[1], fields[2], fields[3], fields[4], fields[5], fields[6], number});
  }
  return result;
}

PlantedResult plant_all(const PlantedCase& planted, const std::vector<Expectation>& expectations,
                        Selection selection) {
  emulator::Coverage coverage;
  emulator::Launch clean = planted.launch_of(0);
  clean.calm = true;
  clean.coverage = &coverage;
  const emulator::Report clean_report = planted.run(clean);
  PlantedResult result;
  if (!clean_report.ok()) {
    result.unexplained.push_back("without any fault planted: " + clean_report.fault);
    return result;
  }
  std::set<int> met;
  std::set<std::pair<emulator::Op, emulator::Change>> kinds;
  for (const emulator::Mutation& mutation : emulator::plantable(coverage)) {
    if (planted.is_wanted && !planted.is_wanted(mutation)) continue;
    const bool is_first = kinds.insert({mutation.op, mutation.change}).second;
    if (selection == Selection::one_of_a_kind && !is_first) continue;
    ++result.planted;
    uint64_t caught_by = ~uint64_t{0};
    for (uint64_t seed = 0; seed < 4; ++seed) {
      emulator::Launch launch = planted.launch_of(seed);
      launch.calm = seed == 0;
      launch.mutation = mutation;
      launch.max_operations = 10 * clean_report.counters.operations;
      if (planted.run(launch).ok()) continue;
      caught_by = seed;
      break;
    }
    if (caught_by == 0) ++result.caught_calm;
    if (caught_by != 0 && caught_by < 4) ++result.caught_later;
    if (caught_by < 4) continue;
    const Survivor survivor = describe(planted, mutation);
    bool explained = false;
    for (const Expectation& expectation : expectations) {
      if (!fits(expectation, survivor)) continue;
      explained = true;
      met.insert(expectation.line);
    }
    if (!explained)
      result.unexplained.push_back(
          fmt::format("{} | {} | {} | {} | {} | {} | ", survivor.kernel, survivor.operation,
                      survivor.change, survivor.barrier, survivor.warpgroup, survivor.source));
  }
  if (selection == Selection::every)
    for (const Expectation& expectation : expectations)
      if (fits(expectation.kernel, planted.name) && expectation.kernel != "*" &&
          !met.contains(expectation.line))
        result.stale.push_back(fmt::format("line {}: {}", expectation.line, expectation.source));
  return result;
}

}  // namespace sirdar::emulator_tests
