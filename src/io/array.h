// Arrays as files hold them. An element type may be one that Sirdar does not compute with (fp64,
// int16, ...); whoever asked for the array converts or refuses it.
#pragma once

#include <sirdar/tensor.hpp>

#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sirdar::io {

// Element types of files: name, bytes, the name in .npy ("" if .npy cannot hold it), the name in
// .safetensors.
#define SIRDAR_ELEMENT_TYPES(row)                                                              \
  row(fp64, 8, "f8", "F64") row(fp32, 4, "f4", "F32") row(fp16, 2, "f2", "F16")                \
      row(bf16, 2, "", "BF16") row(fp8_e4m3, 1, "", "F8_E4M3") row(fp8_e5m2, 1, "", "F8_E5M2") \
          row(int64, 8, "i8", "I64") row(int32, 4, "i4", "I32") row(int16, 2, "i2", "I16")     \
              row(int8, 1, "i1", "I8") row(uint64, 8, "u8", "U64") row(uint32, 4, "u4", "U32") \
                  row(uint16, 2, "u2", "U16") row(uint8, 1, "u1", "U8")                        \
                      row(boolean, 1, "b1", "BOOL")

enum class ElementType : uint8_t {
#define SIRDAR_ROW(name, bytes, npy, safetensors) name,
  SIRDAR_ELEMENT_TYPES(SIRDAR_ROW)
#undef SIRDAR_ROW
};

struct ElementTypeFacts {
  ElementType type;
  std::string_view name;
  int64_t bytes;
  std::string_view npy, safetensors;
};
std::span<const ElementTypeFacts> element_types();
const ElementTypeFacts& facts(ElementType type);
ElementType element_type_of(DType dtype);
std::optional<DType> dtype_of(ElementType type);  // absent for types Sirdar does not compute with

// Memory of one array, aligned for every vector width; never null once allocated, even for 0 bytes.
class Buffer {
 public:
  static Result<Buffer> allocate(uint64_t size);  // contents unspecified
  std::byte* data() const { return data_.get(); }
  uint64_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_.get(), static_cast<size_t>(size_)}; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  uint64_t size_ = 0;
};

struct Array {
  ElementType type = ElementType::fp32;
  std::vector<int64_t> shape;  // at most kMaxRank axes, slowest first; empty: one number
  Buffer buffer;               // row-major, the machine's byte order

  int64_t num_elements() const;
  // The array as Sirdar's own type sees it; `dtype` must be dtype_of(type).
  TensorView view(DType dtype) const;
};

// Bytes of an array, or nothing if the number is beyond int64.
std::optional<int64_t> checked_bytes(std::span<const int64_t> shape, int64_t element_bytes);

std::string print_shape(std::span<const int64_t> shape);  // "[2, 17, 4, 64]"

// Text from a file, fit for one line of a message: quoted, control bytes escaped, cut when long.
std::string in_quotes(std::string_view text);

}  // namespace sirdar::io
