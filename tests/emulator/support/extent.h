// How much of a long test runs: what fits everyday use, or everything (docs/emulator.md).
#pragma once

#include <cstdlib>
#include <cstring>

namespace sirdar::emulator_tests {

inline bool runs_everything() {
  const char* extent = std::getenv("EMULATOR_TESTS");
  return extent != nullptr && std::strcmp(extent, "all") == 0;
}

}  // namespace sirdar::emulator_tests
