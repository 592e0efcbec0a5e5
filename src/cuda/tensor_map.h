// TMA descriptors: what they say, when that is legal, and the driver's encoding of it.
#pragma once

#include "shared/tensor_map.h"

#include <sirdar/tensor.hpp>

#include <array>
#include <cstdint>
#include <string>

namespace sirdar::cuda {

// Chunks of 16 bytes are exchanged within rows of so many bytes in shared memory.
enum class Swizzle : uint8_t { none = 0, bytes_32 = 32, bytes_64 = 64, bytes_128 = 128 };
// What a read fetches into L2 at least.
enum class L2Promotion : uint8_t { none = 0, bytes_64 = 1, bytes_128 = 2, bytes_256 = 3 };

inline constexpr int kMaxTensorMapRank = 5;

// A tensor and the box that one copy moves, fastest axis first. What of a box lies outside the
// tensor is read as 0 and not written.
struct TensorMapSpec {
  void* base = nullptr;  // multiple of 16
  DType dtype = DType::bf16;
  int rank = 1;                                   // 1 to 5
  std::array<int64_t, kMaxTensorMapRank> dims{};  // elements, 1 to 2^32
  // Of axes 1 to rank - 1; axis 0 has no gaps. Multiples of 16, below 2^40, not negative.
  std::array<int64_t, kMaxTensorMapRank - 1> stride_bytes{};
  std::array<int, kMaxTensorMapRank> box{};  // elements, 1 to 256
  Swizzle swizzle = Swizzle::none;
  L2Promotion l2_promotion = L2Promotion::bytes_256;
};

// Ok, or the rule that is broken. `name` is the argument's, for the message. The same for hardware
// and emulator.
Status check_tensor_map(const TensorMapSpec& spec, std::string_view name);

// "bf16 [64 x 128] of [128 x 4096 x 16], strides 4096 and 256 bytes, swizzle 128, at 0x7f00"
std::string describe(const TensorMapSpec& spec);

// Checks, then has the driver encode; needs no context.
Status make_tensor_map(const TensorMapSpec& spec, std::string_view name, TensorMap& map);

}  // namespace sirdar::cuda
