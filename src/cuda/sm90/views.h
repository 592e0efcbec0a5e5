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

// A bias as the kernel reads it. Strides in elements, 0 along the axes that it has not.
struct BiasView {
  const void* data;
  long long stride_batch, stride_head, stride_row, stride_key;
  int reads_pairs;  // two neighbouring keys may be read at once
};

inline constexpr int kNoBound = 1 << 30;  // of a window side, a chunk: further than any position

}  // namespace sirdar::sm90
