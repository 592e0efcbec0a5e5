#include "emulator/support/emulated_driver.h"

#include <gtest/gtest.h>

#include "emulator/tensor_map.h"

namespace sirdar::emulator_tests {

EmulatedDriver::EmulatedDriver() {
  table_.init = [](unsigned) { return 0; };
  table_.driver_version = [](int* version) {
    *version = 13000;
    return 0;
  };
  table_.error_name = [](int, const char** text) {
    *text = "CUDA_ERROR_INVALID_VALUE";
    return 0;
  };
  table_.error_text = [](int, const char** text) {
    *text = "not modelled by the emulator";
    return 0;
  };
  table_.tensor_map_encode = emulator::encode_tensor_map;
  cuda::install_driver(&table_);
}

EmulatedDriver::~EmulatedDriver() { cuda::install_driver(nullptr); }

Status map_refusal(const cuda::TensorMapSpec& spec) {
  const EmulatedDriver driver;
  TensorMap map{};
  return cuda::make_tensor_map(spec, "map", map);
}

TensorMap make_map(const cuda::TensorMapSpec& spec) {
  const EmulatedDriver driver;
  TensorMap map{};
  const Status status = cuda::make_tensor_map(spec, "map", map);
  EXPECT_TRUE(status.ok()) << status.message();
  return map;
}

}  // namespace sirdar::emulator_tests
