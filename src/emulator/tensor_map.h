// Tensor maps for the emulated machine, under the driver's rules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor_map_fields.h"

namespace sirdar::emulator {

// A tensor in global memory and the box that one copy moves; axes from the fastest on.
struct TensorMapRequest {
  void* base;  // 16-byte aligned
  MapType type = MapType::kBf16;
  std::vector<uint64_t> dims;     // elements; 1 to 5 axes
  std::vector<uint64_t> strides;  // bytes, of all axes but the first; multiples of 16
  std::vector<uint32_t> box;      // elements, 1 to 256 an axis
  Swizzle swizzle = Swizzle::k128;
};

// Writes the map into `map` (128 bytes, 64-byte aligned). The sentence that refuses it, or "".
std::string make_tensor_map(const TensorMapRequest& request, void* map);

}  // namespace sirdar::emulator
