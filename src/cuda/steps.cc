#include "cuda/steps.h"

namespace sirdar::cuda {

Status PlanKernels::load(const std::function<std::vector<KernelSource>()>& sources,
                         const Device& device, const Problem& problem) {
  std::call_once(once_, [&] {
    for (const KernelSource& source : sources()) {
      Result<KernelPtr> loaded = load_kernel(source, device, problem.str());
      if (!loaded.ok()) {
        status_ = loaded.status();
        return;
      }
      kernels_.push_back(loaded.value());
    }
  });
  return status_;
}

Status PlanKernels::run(const ContextScope& scope, const std::vector<Step>& steps,
                        const Problem& problem, Stream stream) const {
  for (const Step& step : steps) {
    Launch launch;
    launch.kernel = kernels_[step.kernel].get();
    launch.grid = step.grid;
    launch.cluster = step.cluster;
    launch.is_programmatic = step.is_programmatic;
    launch.is_cooperative = step.is_cooperative;
    launch.problem = &problem;
    if (Status status = launch_bytes(scope, launch, step.params.data(), stream); !status.ok())
      return status;
  }
  return {};
}

}  // namespace sirdar::cuda
