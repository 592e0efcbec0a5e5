// A CUDA driver that remembers what it was asked and does nothing. One at a time.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cuda/driver.h"

namespace sirdar::testing {

struct FakeLaunch {
  cuda::LaunchRecord record;
  std::vector<cuda::LaunchAttribute> attributes;
  cuda::CuFunction function;
  std::vector<unsigned char> params;  // the first bytes of the only parameter
  cuda::CuContext context;            // current at the time
};

struct FakeTensorMap {
  int dtype, interleave, swizzle, l2_promotion, fill;
  void* base;
  std::vector<uint64_t> dims, stride_bytes;
  std::vector<uint32_t> box, steps;
};

// Installed while it lives. Devices are H200s, ordinals 0 to num_devices - 1; the primary context
// of device d is context(d).
class FakeDriver {
 public:
  FakeDriver();
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  static cuda::CuContext context(int device);

  // What it answers.
  int version = 13000, num_devices = 2, major = 9;
  std::map<std::string, int> errors;         // of a call, by its name in the table
  std::vector<cuda::CuContext> stack;        // the last one is current
  std::map<void*, cuda::CuContext> streams;  // the context of each
  size_t param_bytes = 0;                    // how much of a parameter to keep
  float elapsed_ms = 0.25f;                  // between any two events

  // What it was asked.
  std::vector<std::string> calls;
  std::vector<FakeLaunch> launches;
  std::vector<FakeTensorMap> tensor_maps;
  int num_retained = 0, num_libraries = 0, dynamic_shared_bytes = 0;
  int num_allocations = 0;  // of device memory, which is the host's, not yet freed
  unsigned num_events = 0;  // not yet destroyed

 private:
  cuda::Driver table_;
};

}  // namespace sirdar::testing
