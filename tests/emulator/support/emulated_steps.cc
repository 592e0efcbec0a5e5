#include "emulator/support/emulated_steps.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "emulator/support/emulated_kernels.h"
#include "emulator/support/problem_list.h"

namespace sirdar::emulator_tests {

void (*emulated_kernel(const KernelSource& source))(const void* params) {
  const std::string key = key_of(source);
  const auto kernel = std::find_if(kEmulatedKernels.begin(), kEmulatedKernels.end(),
                                   [&](const EmulatedKernel& one) { return one.key == key; });
  if (kernel == kEmulatedKernels.end())
    throw std::runtime_error("no problem of the lists has " + source.entry);
  return kernel->run;
}

void fill_with_numbers(const Args& args) {
  if (args.workspace != nullptr) std::memset(args.workspace, 0x4b, args.workspace_bytes);
}

std::string run_steps(const std::vector<KernelSource>& sources,
                      const std::vector<cuda::Step>& steps, uint64_t seed, unsigned most_blocks) {
  for (const cuda::Step& step : steps) {
    const KernelSource& source = sources[step.kernel];
    const auto run = emulated_kernel(source);
    emulator::Launch launch;
    launch.grid.x = std::min(step.grid.x, most_blocks);
    launch.threads = source.threads;
    launch.shared_bytes = source.shared_bytes;
    launch.cluster = static_cast<int>(step.cluster.x);
    launch.seed = seed;
    const emulator::Report report = emulator::launch(launch, [&] { run(step.params.data()); });
    if (!report.ok()) return source.entry + ": " + report.fault;
  }
  return "";
}

}  // namespace sirdar::emulator_tests
