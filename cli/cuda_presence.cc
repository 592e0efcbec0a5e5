#include "cuda_presence.h"

#include "cuda/driver.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "jit/settings.h"

#include <sirdar/device.hpp>

#include <fmt/format.h>

#include <unistd.h>

namespace sirdar::cli {

std::string describe_gpus() {
  const Result<const cuda::Driver*> driver = cuda::driver();
  if (!driver.ok()) return "none; " + driver.status().message();
  int version = 0, count = 0;
  driver.value()->driver_version(&version);
  if (driver.value()->device_count(&count) != 0) count = 0;
  std::string text = fmt::format("driver for CUDA {}.{}", version / 1000, version % 1000 / 10);
  if (count == 0) return text + ", no GPU";
  for (int index = 0; index < count; ++index) {
    const Result<Device> device = Device::cuda(index);
    text += device.ok() ? fmt::format(", cuda:{} {} (sm_{}{})", index, device.value().name,
                                      device.value().arch,
                                      device.value().arch == 90 ? "" : ", which no kernel is for")
                        : fmt::format(", cuda:{} ({})", index, device.status().message());
  }
  return text;
}

std::string describe_nvrtc() {
  const Result<jit::Compiler> compiler = jit::find_compiler(jit::settings().nvrtc);
  if (!compiler.ok()) return "none; " + compiler.status().message();
  return fmt::format("{}, {}", compiler.value().version, compiler.value().file);
}

std::string describe_cache() {
  const jit::Settings settings = jit::settings();
  if (settings.cache_dir.empty()) return "none; " + settings.no_cache_reason;
  const size_t count = jit::entry_names(settings.cache_dir).size();
  std::string text =
      fmt::format("{}, {} kernel{}", settings.cache_dir.string(), count, count == 1 ? "" : "s");
  if (count > 0 && access(settings.cache_dir.c_str(), W_OK) != 0) text += ", cannot be written";
  for (const auto& pack : settings.packs) text += fmt::format("; pack {}", pack.string());
  return text;
}

}  // namespace sirdar::cli
