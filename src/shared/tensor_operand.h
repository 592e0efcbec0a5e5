// A tensor that an expression reads on the device, as a kernel's parameters carry it. The host half
// fills it; compiled by g++, clang and NVRTC.
#pragma once

namespace sirdar {

struct TensorOperand {
  const void* data;     // null: without elements, every element reads as 0
  long long stride[4];  // in elements; of the last axis it fits an int
  int shape[4];
};

}  // namespace sirdar
