// What the emulator keeps in the 128 opaque bytes of a tensor map.
#pragma once

#include <cstdint>

namespace sirdar::emulator {

enum class MapType : uint8_t { kBf16, kFp16, kFp32, kInt32, kByte };
enum class Swizzle : uint8_t { kNone, k32, k64, k128 };

struct MapFields {
  static constexpr uint32_t kMagic = 0x70616d74;

  uint32_t magic = 0;
  uint8_t rank = 0;
  uint8_t element_bytes = 0;
  MapType type = MapType::kByte;
  Swizzle swizzle = Swizzle::kNone;
  uint8_t* base = nullptr;
  uint64_t dims[5] = {};     // elements, innermost first
  uint64_t strides[4] = {};  // bytes, of dims[1] and on
  uint32_t box[5] = {};

  uint32_t row_bytes() const { return box[0] * element_bytes; }
  int rows() const {
    int result = 1;
    for (int i = 1; i < rank; ++i) result *= static_cast<int>(box[i]);
    return result;
  }
  uint32_t bytes() const { return row_bytes() * static_cast<uint32_t>(rows()); }
};
static_assert(sizeof(MapFields) <= 128);

// Bits 4.. of a shared address, XORed with the row of the atom that the address lies in.
inline uint32_t swizzled(uint32_t address, Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return address;
    case Swizzle::k32:
      return address ^ (((address >> 7) & 1) << 4);
    case Swizzle::k64:
      return address ^ (((address >> 7) & 3) << 4);
    case Swizzle::k128:
      return address ^ (((address >> 7) & 7) << 4);
  }
  return address;
}
inline uint32_t span_of(Swizzle swizzle) {
  return swizzle == Swizzle::kNone ? 16 : 16u << static_cast<int>(swizzle);
}

}  // namespace sirdar::emulator
