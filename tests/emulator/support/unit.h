// For kernels of a few lines: addresses in shared memory, launches, and what a fault must say.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "emulator/launch.h"
#include "ptx/all.cuh"

namespace sirdar::emulator_tests {

inline constexpr int kSharedBytes = 128 << 10;

// Data from an address that every swizzle likes; eight mbarriers behind kMaxData bytes.
inline constexpr uint32_t kMaxData = 96 << 10;
inline uint32_t data_at(uint32_t offset) {
  return ((ptx::dynamic_shared() + 1023) & ~1023u) + offset;
}
inline uint32_t bar_at(int index) { return data_at(kMaxData) + 8 * static_cast<uint32_t>(index); }

// As launched by most tests: a calm run, so that what happens does not depend on the seed.
inline emulator::Launch calm(int threads, int cluster = 1) {
  emulator::Launch launch;
  launch.grid.x = static_cast<unsigned>(cluster);
  launch.threads = threads;
  launch.shared_bytes = kSharedBytes;
  launch.cluster = cluster;
  launch.calm = true;
  return launch;
}

// Neither a calm run nor adversarial ones find anything.
template <class Kernel>
void expect_clean(emulator::Launch launch, const Kernel& kernel) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    launch.calm = seed == 0;
    launch.seed = seed;
    EXPECT_EQ(emulator::launch(launch, kernel).fault, "") << "seed " << seed;
  }
}

// A calm run is refused, with all of these words; with two places where both are ours.
template <class Kernel>
void expect_fault(const emulator::Launch& launch, const Kernel& kernel,
                  std::initializer_list<const char*> words) {
  const emulator::Report report = emulator::launch(launch, kernel);
  for (const char* word : words) {
    EXPECT_NE(report.fault.find(word), std::string::npos)
        << "lacks \"" << word << "\": " << (report.ok() ? "no fault" : report.fault);
  }
}

// Words that name a place of the calling file `lines` above the call.
inline std::string place(const char* op, unsigned line) {
  return ":" + std::to_string(line) + " " + op;
}

}  // namespace sirdar::emulator_tests
