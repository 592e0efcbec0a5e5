// The launches of a call, as the library lists them, on the emulated machine.
#pragma once

#include <sirdar/plan.hpp>

#include <string>
#include <vector>

#include "cuda/steps.h"
#include "emulator/launch.h"
#include "plan/kernel_source.h"

namespace sirdar::emulator_tests {

// The kernel of the lists (tests/CMakeLists.txt) that is this source's; throws if none is.
void (*emulated_kernel(const KernelSource& source))(const void* params);

// One after the other, each on at most `most_blocks` thread blocks, for kernels that take any
// number; what is wrong, or "". `seed` draws the schedule.
std::string run_steps(const std::vector<KernelSource>& sources,
                      const std::vector<cuda::Step>& steps, uint64_t seed, unsigned most_blocks);

// Numbers in a workspace that nobody has written: a NaN could be taken for one of the inputs',
// whose traces kernels look for.
void fill_with_numbers(const Args& args);

}  // namespace sirdar::emulator_tests
