#include "gpu_presence.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>

namespace sirdar::cli {
namespace {

struct Close {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, Close>;

template <class F>
F* function(const Library& library, const char* name) {
  return reinterpret_cast<F*>(dlsym(library.get(), name));
}

}  // namespace

std::string gpu_presence() {
  const Library driver(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
  if (!driver) return "no NVIDIA driver (libcuda.so.1 cannot be loaded)";
  auto* const init = function<int(unsigned)>(driver, "cuInit");
  auto* const get_version = function<int(int*)>(driver, "cuDriverGetVersion");
  auto* const count_devices = function<int(int*)>(driver, "cuDeviceGetCount");
  auto* const get_name = function<int(char*, int, int)>(driver, "cuDeviceGetName");
  if (!init || !get_version || !count_devices || !get_name) {
    return "libcuda.so.1 lacks functions of a driver";
  }
  int version = 0, count = 0;
  if (get_version(&version) != 0) return "the driver does not tell its version";
  std::string text = fmt::format("driver for CUDA {}.{}", version / 1000, version % 1000 / 10);
  if (const int error = init(0); error != 0) {
    return text + fmt::format(", no GPU it can use (cuInit gives {})", error);
  }
  if (count_devices(&count) != 0 || count == 0) return text + ", no GPU";
  for (int device = 0; device < count; ++device) {
    char name[256] = "";
    text += get_name(name, sizeof(name) - 1, device) == 0 ? fmt::format(", {}", name) : ", a GPU";
  }
  return text;
}

std::string nvrtc_presence() {
  for (const char* name : {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"}) {
    const Library nvrtc(dlopen(name, RTLD_NOW | RTLD_LOCAL));
    if (!nvrtc) continue;
    auto* const get_version = function<int(int*, int*)>(nvrtc, "nvrtcVersion");
    int major = 0, minor = 0;
    if (!get_version || get_version(&major, &minor) != 0) return fmt::format("{}, broken", name);
    return fmt::format("{}, version {}.{}", name, major, minor);
  }
  return "not found (libnvrtc.so cannot be loaded)";
}

}  // namespace sirdar::cli
