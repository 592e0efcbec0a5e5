// The kernels of problems.txt, compiled for the emulated machine.
#pragma once

#include <string>
#include <vector>

namespace sirdar::emulator_tests {

struct EmulatedKernel {
  std::string key;                  // key_of() its source
  void (*run)(const void* params);  // one thread
};
extern const std::vector<EmulatedKernel> kEmulatedKernels;

}  // namespace sirdar::emulator_tests
