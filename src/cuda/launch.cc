#include "cuda/launch.h"

#include <fmt/format.h>

namespace sirdar::cuda {
namespace {

std::string what_of(const Launch& launch) {
  const Kernel& kernel = *launch.kernel;
  std::string text = fmt::format("launch of {}, grid {} x {} x {}", kernel.entry(), launch.grid.x,
                                 launch.grid.y, launch.grid.z);
  const Dim3& cluster = launch.cluster;
  if (cluster.x * cluster.y * cluster.z != 1)
    text += fmt::format(", clusters of {} x {} x {}", cluster.x, cluster.y, cluster.z);
  text += fmt::format(", {} threads, {} bytes of shared memory, device {}", kernel.threads,
                      kernel.shared_bytes, kernel.device);
  if (launch.problem != nullptr) text += fmt::format(", for '{}'", launch.problem->str());
  return text;
}

}  // namespace

Status launch_bytes(const Launch& launch, const void* params, Stream stream) {
  const Result<const Driver*> found = driver();
  if (!found.ok()) return found.status();
  const Result<ContextScope> scope =
      ContextScope::of_stream(*found.value(), launch.kernel->device, stream);
  if (!scope.ok()) return scope.status();
  return launch_bytes(scope.value(), launch, params, stream);
}

Status launch_bytes(const ContextScope& scope, const Launch& launch, const void* params,
                    Stream stream) {
  const Driver& api = scope.driver();
  const Kernel& kernel = *launch.kernel;
  LaunchAttribute attributes[3];
  unsigned count = 0;
  if (launch.cluster.x * launch.cluster.y * launch.cluster.z != 1) {
    attributes[count].id = attribute::kClusterDimension;
    attributes[count++].value.cluster = {launch.cluster.x, launch.cluster.y, launch.cluster.z};
  }
  if (launch.is_programmatic) {
    attributes[count].id = attribute::kProgrammatic;
    attributes[count++].value.is_programmatic = 1;
  }
  if (launch.is_cooperative) {
    attributes[count].id = attribute::kCooperative;
    attributes[count++].value.is_cooperative = 1;
  }
  const LaunchRecord record{launch.grid.x,
                            launch.grid.y,
                            launch.grid.z,
                            static_cast<unsigned>(kernel.threads),
                            1,
                            1,
                            static_cast<unsigned>(kernel.shared_bytes),
                            static_cast<CuStream>(stream),
                            attributes,
                            count};
  void* pointers[] = {const_cast<void*>(params)};
  // A kernel handle stands for its function in whatever context the stream has.
  const CuResult error =
      api.launch(&record, reinterpret_cast<CuFunction>(kernel.handle), pointers, nullptr);
  return error == 0 ? Status() : check(api, error, what_of(launch));
}

}  // namespace sirdar::cuda
