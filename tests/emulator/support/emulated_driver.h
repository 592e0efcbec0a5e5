// The emulated machine in the place of a GPU's driver, as far as tensor maps need one.
#pragma once

#include "cuda/driver.h"
#include "cuda/tensor_map.h"

namespace sirdar::emulator_tests {

// The library's CUDA driver while it lives.
class EmulatedDriver {
 public:
  EmulatedDriver();
  ~EmulatedDriver();
  EmulatedDriver(const EmulatedDriver&) = delete;
  EmulatedDriver& operator=(const EmulatedDriver&) = delete;

 private:
  cuda::Driver table_{};
};

// By the library's own checks; a refusal fails the test.
TensorMap make_map(const cuda::TensorMapSpec& spec);
Status map_refusal(const cuda::TensorMapSpec& spec);

}  // namespace sirdar::emulator_tests
