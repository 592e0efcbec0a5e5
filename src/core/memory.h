// Which bytes a strided view touches, without trusting its numbers.
#pragma once

#include <sirdar/tensor.hpp>

namespace sirdar {

// Sums and products of 64-bit strides and sizes.
using Wide = __int128;

bool is_empty(const TensorView& view);

// Byte offsets from data, first touched and one past the last; {0, 0} for an empty view.
struct ByteRange {
  Wide begin = 0, end = 0;
};
ByteRange byte_range(const TensorView& view);

// Is every touched byte at an address that a pointer can hold?
bool fits_address_space(const TensorView& view);

// Does some byte belong to two elements? Exact, but for a search that would be long: then yes.
bool overlaps_itself(const TensorView& view);

// Do two views share a byte? Exact for strides as they occur, interleaved heads and packed q, k, v
// included; says yes in doubt when the search would be long.
bool overlap(const TensorView& a, const TensorView& b);

}  // namespace sirdar
