#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

template <class T>
T load_constant(const T* address) {
  return *address;
}

}  // namespace sirdar::ptx
