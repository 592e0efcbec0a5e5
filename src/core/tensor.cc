#include <sirdar/tensor.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace sirdar {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int64_t bits;
};

constexpr DTypeRow kDTypes[] = {
#define SIRDAR_ROW(name, value, bits, exponent, mantissa) {DType::name, #name, bits},
    SIRDAR_DTYPES(SIRDAR_ROW)
#undef SIRDAR_ROW
};

const DTypeRow* find(DType dtype) {
  for (const DTypeRow& row : kDTypes)
    if (row.dtype == dtype) return &row;
  return nullptr;
}

}  // namespace

std::string_view name_of(DType dtype) {
  const DTypeRow* row = find(dtype);
  return row != nullptr ? row->name : "unknown";
}

Result<DType> parse_dtype(std::string_view name) {
  std::string known;
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return Status(StatusCode::invalid_argument,
                fmt::format("dtype: '{}' is not a dtype; use one of {}.", name, known), "dtype");
}

int64_t size_bytes(DType dtype) {
  const DTypeRow* row = find(dtype);
  return row != nullptr ? row->bits / 8 : 0;
}

TensorView TensorView::contiguous(void* data, DType dtype, std::initializer_list<int64_t> shape) {
  TensorView view;
  if (shape.size() > kMaxRank) return view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::copy_n(shape.begin(), view.rank, view.shape.begin());
  // Unsigned: shapes too large for memory wrap here and are refused by validation, not by a trap.
  uint64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    view.stride[axis] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(std::max<int64_t>(view.shape[axis], 1));
  }
  return view;
}

TensorView TensorView::strided(void* data, DType dtype, std::initializer_list<int64_t> shape,
                               std::initializer_list<int64_t> stride) {
  TensorView view = contiguous(data, dtype, shape);
  std::copy_n(stride.begin(), std::min<size_t>(stride.size(), static_cast<size_t>(view.rank)),
              view.stride.begin());
  return view;
}

TensorView TensorView::transposed(int axis_a, int axis_b) const {
  TensorView view = *this;
  if (axis_a < 0 || axis_b < 0 || axis_a >= rank || axis_b >= rank) return {};
  std::swap(view.shape[axis_a], view.shape[axis_b]);
  std::swap(view.stride[axis_a], view.stride[axis_b]);
  return view;
}

TensorView view_of_const(const void* data, DType dtype, std::initializer_list<int64_t> shape) {
  return TensorView::contiguous(const_cast<void*>(data), dtype, shape);
}

}  // namespace sirdar
