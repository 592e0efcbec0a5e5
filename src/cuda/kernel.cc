#include "cuda/kernel.h"

#include <fmt/format.h>

namespace sirdar::cuda {
namespace {

// Loaded kernels by device, driver and cache name.
struct Table {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<const Kernel>> kernels;
};

Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

Status not_loadable(const Driver& driver, CuResult error, const jit::CompiledKernel& code,
                    const Device& device) {
  int version = 0;
  driver.driver_version(&version);
  return Status(StatusCode::device_error,
                fmt::format("kernel: {} for {}, compiled by NVRTC {}, is refused by the driver for "
                            "CUDA {}.{} on {}: {}. Update the driver, or use an NVRTC that is not "
                            "newer than it.",
                            code.report.entry, code.report.arch, code.report.nvrtc, version / 1000,
                            version % 1000 / 10, device.name, describe(driver, error)),
                "kernel");
}

// A plan may be made for a machine that is elsewhere; its code runs on one generation alone.
Status check_device(const Device& device) {
  if (device.kind != DeviceKind::cuda)
    return Status(StatusCode::unsupported,
                  fmt::format("device: {} is a CPU and the kernel is for a GPU; plan for one "
                              "(Device::cuda).",
                              device.name),
                  "device");
  const Result<Device> here = Device::cuda(device.index);
  if (!here.ok()) return here.status();
  if (here.value().arch == device.arch) return {};
  return Status(StatusCode::device_error,
                fmt::format("device: the plan is for {} (sm_{}) and device {} here is {} (sm_{}); "
                            "make the plan for Device::cuda({}).",
                            device.name, device.arch, device.index, here.value().name,
                            here.value().arch, device.index),
                "device");
}

}  // namespace

Kernel::~Kernel() {
  if (library_ != nullptr) driver_->library_unload(library_);
}

int Kernel::counters_of(const void* workspace) const {
  const std::lock_guard lock(mutex_);
  const auto found = workspaces_.find(workspace);
  if (found != workspaces_.end()) return found->second;
  const int next = static_cast<int>(workspaces_.size());
  if (next == num_workspaces_) return -1;
  workspaces_.emplace(workspace, next);
  return next;
}

Result<KernelPtr> load_kernel(const KernelSource& source, const Device& device,
                              const std::string& problem) {
  if (Status status = check_device(device); !status.ok()) return status;
  Result<jit::CompiledKernelPtr> compiled = jit::compile(source, jit::arch_of(device), problem);
  if (!compiled.ok()) return compiled.status();
  const jit::CompiledKernelPtr code = compiled.value();
  const Result<const Driver*> found = driver();
  if (!found.ok()) return found.status();
  const Driver& api = *found.value();

  const std::lock_guard lock(table().mutex);
  const std::string key =
      fmt::format("{} {} {}", device.index, static_cast<const void*>(&api), code->name);
  if (KernelPtr kernel = table().kernels[key].lock()) return kernel;
  const Result<ContextScope> scope = ContextScope::of_device(api, device.index);
  if (!scope.ok()) return scope.status();
  const auto kernel = std::make_shared<Kernel>();
  kernel->device = device.index;
  kernel->threads = source.threads;
  kernel->shared_bytes = source.shared_bytes;
  kernel->code = code;
  kernel->driver_ = &api;
  kernel->num_workspaces_ = source.num_workspaces;
  CuResult error = api.library_load(&kernel->library_, code->cubin.data(), nullptr, nullptr, 0,
                                    nullptr, nullptr, 0);
  if (error == 0)
    error = api.library_kernel(&kernel->handle, kernel->library_, code->report.entry.c_str());
  if (error != 0) return not_loadable(api, error, *code, device);
  if (Status status = check(api,
                            api.kernel_set(attribute::kMaxDynamicShared, kernel->shared_bytes,
                                           kernel->handle, device.index),
                            fmt::format("{}: {} bytes of shared memory on {}", kernel->entry(),
                                        kernel->shared_bytes, device.name));
      !status.ok())
    return status;
  // The driver loads code when it is first used; that must not happen while a graph is captured.
  CuFunction loaded = nullptr;
  if (Status status = check(api, api.kernel_function(&loaded, kernel->handle),
                            fmt::format("{}: loading", kernel->entry()));
      !status.ok())
    return status;
  table().kernels[key] = kernel;
  return KernelPtr(kernel);
}

}  // namespace sirdar::cuda
