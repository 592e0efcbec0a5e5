#include "tensor_map.h"

#include <cstring>

namespace sirdar::emulator {
namespace {

// By the driver's number; false: not modelled.
bool find_type(int dtype, MapFields& fields) {
  switch (dtype) {
    case 0:
      fields.type = MapType::kByte, fields.element_bytes = 1;
      return true;
    case 3:
      fields.type = MapType::kInt32, fields.element_bytes = 4;
      return true;
    case 6:
      fields.type = MapType::kFp16, fields.element_bytes = 2;
      return true;
    case 7:
      fields.type = MapType::kFp32, fields.element_bytes = 4;
      return true;
    case 9:
      fields.type = MapType::kBf16, fields.element_bytes = 2;
      return true;
    default:
      return false;
  }
}

}  // namespace

int encode_tensor_map(void* map, int dtype, uint32_t rank, void* base, const uint64_t* dims,
                      const uint64_t* stride_bytes, const uint32_t* box, const uint32_t* steps,
                      int interleave, int swizzle, int, int fill) {
  constexpr int kInvalidValue = 1;
  static constexpr Swizzle swizzles[] = {Swizzle::kNone, Swizzle::k32, Swizzle::k64, Swizzle::k128};
  MapFields fields;
  if (!find_type(dtype, fields) || interleave != 0 || fill != 0 || swizzle < 0 || swizzle > 3)
    return kInvalidValue;
  fields.magic = MapFields::kMagic;
  fields.rank = static_cast<uint8_t>(rank);
  fields.swizzle = swizzles[swizzle];
  fields.base = static_cast<uint8_t*>(base);
  for (uint32_t i = 0; i < rank; ++i) {
    if (steps[i] != 1) return kInvalidValue;
    fields.dims[i] = dims[i];
    fields.box[i] = box[i];
    if (i > 0) fields.strides[i - 1] = stride_bytes[i - 1];
  }
  // Narrower boxes are legal; how they lie in shared memory is not modelled.
  if (fields.swizzle != Swizzle::kNone && fields.row_bytes() != span_of(fields.swizzle))
    return kInvalidValue;
  std::memset(map, 0, 128);
  std::memcpy(map, &fields, sizeof fields);
  return 0;
}

}  // namespace sirdar::emulator
