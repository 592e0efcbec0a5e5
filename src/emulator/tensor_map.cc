#include "tensor_map.h"

#include <fmt/format.h>

#include <cstring>

namespace sirdar::emulator {
namespace {

uint8_t bytes_of(MapType type) {
  switch (type) {
    case MapType::kBf16:
    case MapType::kFp16:
      return 2;
    case MapType::kFp32:
    case MapType::kInt32:
      return 4;
    case MapType::kByte:
      return 1;
  }
  return 1;
}

std::string refusal(const TensorMapRequest& r) {
  const size_t rank = r.dims.size();
  if (rank < 1 || rank > 5 || r.strides.size() + 1 != rank || r.box.size() != rank)
    return fmt::format(
        "tensor map: {} axes, {} strides, {} box sides; 1 to 5 axes, a stride less "
        "and as many sides are needed.",
        rank, r.strides.size(), r.box.size());
  if (reinterpret_cast<uintptr_t>(r.base) % 16)
    return "tensor map: the base address is not a multiple of 16; align the tensor.";
  for (const uint64_t dim : r.dims)
    if (dim < 1 || dim > uint64_t{1} << 32)
      return fmt::format("tensor map: an axis of {} elements; 1 to 2^32 are allowed.", dim);
  for (const uint64_t stride : r.strides)
    if (stride % 16 || stride >= uint64_t{1} << 40)
      return fmt::format(
          "tensor map: a stride of {} bytes; multiples of 16 below 2^40 are allowed.", stride);
  for (const uint32_t side : r.box)
    if (side < 1 || side > 256)
      return fmt::format("tensor map: a box side of {}; 1 to 256 are allowed.", side);
  const uint32_t row = r.box[0] * bytes_of(r.type);
  if (row % 16)
    return fmt::format("tensor map: the box is {} bytes wide; a multiple of 16 is needed.", row);
  // The driver takes narrower boxes too; how they lie in shared memory is not modelled.
  if (r.swizzle != Swizzle::kNone && row != span_of(r.swizzle))
    return fmt::format("tensor map: the box is {} bytes wide; under this swizzle {} are needed.",
                       row, span_of(r.swizzle));
  return "";
}

}  // namespace

std::string make_tensor_map(const TensorMapRequest& request, void* map) {
  std::string refused = refusal(request);
  if (!refused.empty()) return refused;
  MapFields fields;
  fields.magic = MapFields::kMagic;
  fields.rank = static_cast<uint8_t>(request.dims.size());
  fields.element_bytes = bytes_of(request.type);
  fields.type = request.type;
  fields.swizzle = request.swizzle;
  fields.base = static_cast<uint8_t*>(request.base);
  for (size_t i = 0; i < request.dims.size(); ++i) fields.dims[i] = request.dims[i];
  for (size_t i = 0; i < request.strides.size(); ++i) fields.strides[i] = request.strides[i];
  for (size_t i = 0; i < request.box.size(); ++i) fields.box[i] = request.box[i];
  std::memset(map, 0, 128);
  std::memcpy(map, &fields, sizeof fields);
  return "";
}

}  // namespace sirdar::emulator
