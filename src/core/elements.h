// Elements of any dtype and stride as float64, and back with one rounding. Clear, not fast.
#pragma once

#include <sirdar/tensor.hpp>

#include <vector>

#include <span>

namespace sirdar {

// `offset` counts elements from view.data.
double load_element(const TensorView& view, int64_t offset);
// row.size() elements that lie side by side.
void load_row(const TensorView& view, int64_t offset, std::span<double> row);
// Rounds once, to nearest even; view.dtype must be a floating-point type.
void store_element(const TensorView& view, int64_t offset, double value);

void store_row(const TensorView& view, int64_t offset, std::span<const double> row);

// Where [b, h, i, j] lies in a mask, bias or document view; axes of size 1 are broadcast. With
// `contiguous` the strides are those of the same shape without gaps.
int64_t broadcast_offset(const TensorView& view, std::span<const int64_t> index, bool contiguous);

int64_t element_count(const TensorView& view);

// All elements, row-major. Throws std::bad_alloc.
std::vector<double> load_all(const TensorView& view);

// Calls visit(offset in the view, index in row-major order) for every element.
template <class Visit>
void for_each_element(const TensorView& view, Visit visit) {
  const int64_t count = element_count(view);
  for (int64_t n = 0; n < count; ++n) {
    int64_t offset = 0, rest = n;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      const size_t a = static_cast<size_t>(axis);
      if (view.shape[a] > 1) offset += rest % view.shape[a] * view.stride[a];
      rest /= view.shape[a];
    }
    visit(offset, n);
  }
}

}  // namespace sirdar
