// Plants every fault that can be planted in a kernel and says which ones nobody noticed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "emulator/launch.h"

namespace sirdar::emulator_tests {

struct PlantedCase {
  std::string name;
  std::string source_folder;  // where the kernel's files are
  // Runs the kernel, and checks what it computed.
  std::function<emulator::Report(const emulator::Launch&)> run;
  std::function<emulator::Launch(uint64_t seed)> launch_of;
  std::function<std::string(int64_t offset)> name_of_barrier;
  std::function<bool(const emulator::Mutation&)> is_wanted{};  // empty: all are
};

// A line of a survivors file: six fields and a reason, between bars. "*" stands for anything.
struct Expectation {
  std::string kernel, operation, change, barrier, warpgroup, source, reason;
  int line = 0;
};

struct PlantedResult {
  int planted = 0, caught_calm = 0, caught_later = 0;
  std::vector<std::string> unexplained;  // as lines of a survivors file, without a reason
  std::vector<std::string> stale;        // expectations that met nothing
};

std::vector<Expectation> read_survivors(const std::string& path);

enum class Selection {
  every,
  one_of_a_kind,  // the first place of each change of each operation
};

// Each fault: one calm run, then some adversarial ones until something notices. Expectations can be
// found stale only where every fault is planted.
PlantedResult plant_all(const PlantedCase& planted, const std::vector<Expectation>& expectations,
                        Selection selection);

}  // namespace sirdar::emulator_tests
