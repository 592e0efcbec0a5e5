#include "io/array.h"

#include <fmt/format.h>

#include <array>

namespace sirdar::io {
namespace {

constexpr std::array kElementTypes = {
#define SIRDAR_ROW(name, bytes, npy, safetensors) \
  ElementTypeFacts{ElementType::name, #name, bytes, npy, safetensors},
    SIRDAR_ELEMENT_TYPES(SIRDAR_ROW)
#undef SIRDAR_ROW
};

}  // namespace

std::span<const ElementTypeFacts> element_types() { return kElementTypes; }

const ElementTypeFacts& facts(ElementType type) { return kElementTypes[static_cast<size_t>(type)]; }

ElementType element_type_of(DType dtype) {
  switch (dtype) {
#define SIRDAR_ROW(name, value, bits, exponent, mantissa) \
  case DType::name:                                       \
    return ElementType::name;
    SIRDAR_DTYPES(SIRDAR_ROW)
#undef SIRDAR_ROW
  }
  return ElementType::fp32;
}

std::optional<DType> dtype_of(ElementType type) {
  switch (type) {
#define SIRDAR_ROW(name, value, bits, exponent, mantissa) \
  case ElementType::name:                                 \
    return DType::name;
    SIRDAR_DTYPES(SIRDAR_ROW)
#undef SIRDAR_ROW
    default:
      return std::nullopt;
  }
}

Result<Buffer> Buffer::allocate(uint64_t size) {
  constexpr uint64_t kAlignment = 64;
  constexpr uint64_t kMax = uint64_t{1} << 62;
  const uint64_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  Buffer buffer;
  if (size <= kMax) {
    buffer.data_.reset(static_cast<std::byte*>(
        std::aligned_alloc(kAlignment, static_cast<size_t>(rounded ? rounded : kAlignment))));
  }
  if (!buffer.data_) {
    return Status(StatusCode::out_of_memory,
                  fmt::format("memory: {} bytes could not be had; use smaller tensors.", size));
  }
  buffer.size_ = size;
  return buffer;
}

int64_t Array::num_elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

TensorView Array::view(DType dtype) const {
  TensorView view;
  view.data = buffer.data();
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  int64_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    view.shape[axis] = shape[axis];
    view.stride[axis] = stride;
    stride *= shape[axis];
  }
  return view;
}

std::optional<int64_t> checked_bytes(std::span<const int64_t> shape, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  bool is_empty = false, overflows = false;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    is_empty = is_empty || size == 0;
    if (size > 0) overflows = overflows || __builtin_mul_overflow(bytes, size, &bytes);
  }
  // The nonempty axes count even when another is 0: strides are products of them.
  if (overflows) return std::nullopt;
  return is_empty ? 0 : bytes;
}

std::string print_shape(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kLongest = 60;
  std::string result = "'";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result + (text.size() > kLongest ? "...'" : "'");
}

}  // namespace sirdar::io
