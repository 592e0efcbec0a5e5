// TensorView: memory of the caller's, described. It owns nothing and is cheap to copy.
#pragma once

#include <sirdar/status.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace sirdar {

enum class DType : uint8_t {
#define SIRDAR_ROW(name, value, bits, exponent, mantissa) name = value,
  SIRDAR_DTYPES(SIRDAR_ROW)
#undef SIRDAR_ROW
};

SIRDAR_API std::string_view name_of(DType dtype);
SIRDAR_API Result<DType> parse_dtype(std::string_view name);
SIRDAR_API int64_t size_bytes(DType dtype);

inline constexpr int kMaxRank = 4;

// Shapes are slowest axis first, [batch, seqlen, num_heads, head_dim]; strides count elements, may
// be zero or negative on inputs, and are not read where the axis has fewer than two entries. `data`
// points at element [0, 0, ...]. A view whose data is null is absent, whatever its shape.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::fp32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> stride{};

  bool present() const { return data != nullptr; }

  // Row-major and gap-free, the last axis fastest. With more than kMaxRank sizes the view is
  // absent, as sirdar_tensor_contiguous()'s is.
  SIRDAR_API static TensorView contiguous(void* data, DType dtype,
                                          std::initializer_list<int64_t> shape);
  SIRDAR_API static TensorView strided(void* data, DType dtype,
                                       std::initializer_list<int64_t> shape,
                                       std::initializer_list<int64_t> stride);
  // The same memory with two axes exchanged; turns [batch, heads, seqlen, dim] into Sirdar's order.
  // With an axis that the view has not the result is absent.
  SIRDAR_API TensorView transposed(int axis_a, int axis_b) const;
};

// Read-only memory: Sirdar never writes through an input, so a const pointer may be viewed.
SIRDAR_API TensorView view_of_const(const void* data, DType dtype,
                                    std::initializer_list<int64_t> shape);

}  // namespace sirdar
