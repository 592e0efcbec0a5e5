#include "cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>

namespace sirdar::cuda {
namespace {

std::atomic<const Driver*> installed{nullptr};

// The driver reads these as its own.
static_assert(sizeof(LaunchAttribute) == 72 && offsetof(LaunchAttribute, value) == 8);
static_assert(sizeof(LaunchRecord) == 56 && offsetof(LaunchRecord, stream) == 32);

Status no_driver(std::string reason) {
  return Status(StatusCode::device_error, fmt::format("driver: {}", reason), "driver");
}

// The name of the first function that the library lacks, or null. Numbers in names are versions of
// the interface, fixed for ever.
const char* bind_all(void* library, Driver& table) {
  const char* missing = nullptr;
  const auto bind = [&](const char* name, auto*& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && missing == nullptr) missing = name;
  };
  bind("cuInit", table.init);
  bind("cuDriverGetVersion", table.driver_version);
  bind("cuGetErrorName", table.error_name);
  bind("cuGetErrorString", table.error_text);
  bind("cuDeviceGetCount", table.device_count);
  bind("cuDeviceGet", table.device_get);
  bind("cuDeviceGetName", table.device_name);
  bind("cuDeviceGetAttribute", table.device_attribute);
  bind("cuCtxGetCurrent", table.context_get);
  bind("cuCtxPushCurrent_v2", table.context_push);
  bind("cuCtxPopCurrent_v2", table.context_pop);
  bind("cuCtxGetDevice", table.context_device);
  bind("cuDevicePrimaryCtxRetain", table.primary_retain);
  bind("cuDevicePrimaryCtxRelease_v2", table.primary_release);
  bind("cuStreamGetCtx", table.stream_context);
  bind("cuLibraryLoadData", table.library_load);
  bind("cuLibraryUnload", table.library_unload);
  bind("cuLibraryGetKernel", table.library_kernel);
  bind("cuKernelGetFunction", table.kernel_function);
  bind("cuKernelSetAttribute", table.kernel_set);
  bind("cuLaunchKernelEx", table.launch);
  bind("cuCtxSynchronize", table.context_synchronize);
  bind("cuEventCreate", table.event_create);
  bind("cuEventDestroy_v2", table.event_destroy);
  bind("cuEventRecord", table.event_record);
  bind("cuEventElapsedTime", table.event_elapsed);
  bind("cuMemAlloc_v2", table.memory_allocate);
  bind("cuMemFree_v2", table.memory_free);
  bind("cuMemcpyHtoD_v2", table.copy_to_device);
  bind("cuMemcpyDtoH_v2", table.copy_to_host);
  bind("cuMemsetD32Async", table.memset32);
  bind("cuTensorMapEncodeTiled", table.tensor_map_encode);
  return missing;
}

Status initialise(const Driver& table, const char* missing) {
  int version = 0;
  if (table.driver_version == nullptr || table.driver_version(&version) != 0)
    return no_driver("libcuda.so.1 does not tell its version; install NVIDIA's driver again.");
  if (version < kMinDriverVersion || missing != nullptr)
    return no_driver(
        fmt::format("it serves CUDA {}.{}{}; a driver for CUDA {}.0 or newer is needed, update it.",
                    version / 1000, version % 1000 / 10,
                    missing == nullptr ? std::string() : fmt::format(" and lacks {}", missing),
                    kMinDriverVersion / 1000));
  if (const CuResult error = table.init(0); error != 0)
    return no_driver(
        fmt::format("cuInit gives {}; check that a GPU is visible ('nvidia-smi', "
                    "CUDA_VISIBLE_DEVICES).",
                    describe(table, error)));
  return {};
}

Result<const Driver*> load() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return no_driver("libcuda.so.1 cannot be loaded; install NVIDIA's driver to use a GPU.");
  static Driver table{};
  const char* const missing = bind_all(library, table);
  if (Status status = initialise(table, missing); !status.ok()) return status;
  return &table;
}

// After these a context answers every call with the same error.
bool is_sticky(CuResult error) {
  constexpr CuResult kSticky[] = {214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719};
  return std::find(std::begin(kSticky), std::end(kSticky), error) != std::end(kSticky);
}

}  // namespace

Result<const Driver*> driver() {
  if (const Driver* table = installed.load(std::memory_order_acquire)) {
    if (Status status = initialise(*table, nullptr); !status.ok()) return status;
    return table;
  }
  static const Result<const Driver*>* const result = new Result<const Driver*>(load());
  return *result;
}

void install_driver(const Driver* table) { installed.store(table, std::memory_order_release); }

std::string describe(const Driver& driver, CuResult error) {
  const char *name = nullptr, *text = nullptr;
  if (driver.error_name(error, &name) != 0 || name == nullptr)
    return fmt::format("CUDA error {}", error);
  std::string result = name;
  if (driver.error_text(error, &text) == 0 && text != nullptr) result += fmt::format(" ({})", text);
  if (is_sticky(error)) result += ", after which this process cannot use the context any more";
  return result;
}

Status check(const Driver& driver, CuResult error, std::string_view what) {
  constexpr CuResult kOutOfMemory = 2;
  if (error == 0) return {};
  return Status(error == kOutOfMemory ? StatusCode::out_of_memory : StatusCode::device_error,
                fmt::format("{}: {}.", what, describe(driver, error)));
}

}  // namespace sirdar::cuda
