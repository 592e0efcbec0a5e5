// A GPU as facts. Asking creates nothing on it.
#include "cuda/driver.h"

#include <sirdar/device.hpp>

#include <fmt/format.h>

namespace sirdar {
namespace {

using cuda::CuDevice;
using cuda::Driver;
namespace attribute = cuda::attribute;

Result<int> ask(const Driver& driver, CuDevice device, int which) {
  int value = 0;
  Status status = cuda::check(driver, driver.device_attribute(&value, which, device),
                              fmt::format("cuDeviceGetAttribute {} of device {}", which, device));
  if (!status.ok()) return status;
  return value;
}

Status no_such_device(int index, int count) {
  return Status(StatusCode::invalid_argument,
                count == 0 ? fmt::format("device: there is no GPU to be device {}; make it visible "
                                         "(CUDA_VISIBLE_DEVICES), or plan for Device::host().",
                                         index)
                           : fmt::format("device: {} is not from 0 to {}, the GPUs that are here.",
                                         index, count - 1),
                "device");
}

}  // namespace

Result<Device> Device::cuda(int index) {
  const Result<const Driver*> found = cuda::driver();
  if (!found.ok()) return found.status();
  const Driver& driver = *found.value();
  int count = 0;
  if (Status status = cuda::check(driver, driver.device_count(&count), "cuDeviceGetCount");
      !status.ok())
    return status;
  if (index < 0 || index >= count) return no_such_device(index, count);
  CuDevice handle = 0;
  char name[256] = "";
  if (driver.device_get(&handle, index) != 0 ||
      driver.device_name(name, sizeof(name) - 1, handle) != 0)
    return Status(StatusCode::device_error,
                  fmt::format("device: {} does not answer; check it with 'nvidia-smi'.", index),
                  "device");
  Device device;
  device.kind = DeviceKind::cuda;
  device.name = name;
  device.index = index;
  int major = 0, minor = 0;
  const auto fill = [&](auto& field, int which) {
    const Result<int> value = ask(driver, handle, which);
    if (!value.ok()) return value.status();
    field = value.value();
    return Status();
  };
  for (const Status& status :
       {fill(major, attribute::kMajor), fill(minor, attribute::kMinor),
        fill(device.num_sms, attribute::kNumSms), fill(device.smem_bytes, attribute::kSmemOptin),
        fill(device.l2_bytes, attribute::kL2Bytes)})
    if (!status.ok()) return status;
  device.arch = 10 * major + minor;
  return device;
}

}  // namespace sirdar
