// The caller's tensors as kernels read them with ordinary loads, and bounds of masks.
#pragma once

namespace sirdar::sm90 {

// int32 values of a caller's view, one stride apart; null where the problem has none.
struct IntView {
  const int* data;
  long long stride;
};

// Strides in elements.
struct RowView {
  void* data;
  long long stride_batch, stride_row, stride_head;
};

inline constexpr int kNoBound = 1 << 30;  // of a window side, a chunk: further than any position

}  // namespace sirdar::sm90
