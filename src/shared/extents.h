// Where sequences lie: dense, ragged (cu_seqlens), shortened (seqused) and paged tensors reduced to
// a length per sequence and a 64-bit element offset per row. Pure arithmetic over plain pointers;
// the host builds these structs in core/geometry.h.
#pragma once

namespace sirdar {

struct Sequence {
  long long begin = 0;   // its first row in a ragged tensor; 0 in a dense or paged one
  long long stored = 0;  // rows that are its own, used or not
  long long length = 0;  // rows that take part: 0 <= length <= stored
};

// Elements are read with a stride, as any int32 view may have one.
struct IntArray {
  const int* data = nullptr;
  long long stride = 1;
  constexpr bool present() const { return data != nullptr; }
  constexpr long long at(long long index) const { return data[index * stride]; }
};

// The query or the key side of a problem.
struct Extents {
  long long seqlen = 0;  // rows of every sequence unless cu_seqlens or seqused say otherwise
  IntArray cu_seqlens;   // [batch + 1]
  IntArray seqused;      // [batch]

  constexpr Sequence sequence(long long b) const {
    Sequence result{0, seqlen, seqlen};
    if (cu_seqlens.present()) {
      result.begin = cu_seqlens.at(b);
      result.stored = result.length = cu_seqlens.at(b + 1) - result.begin;
    }
    if (seqused.present()) result.length = seqused.at(b);
    return result;
  }
};

// Element offsets of rows [batch, seqlen, heads, .], [total, heads, .] or [num_pages, page_size,
// heads, .]; strides in elements, 0 where the tensor lacks the axis.
struct RowMap {
  long long stride_batch = 0;  // of a page, where paged
  long long stride_row = 0, stride_head = 0;
  const int* page_table = nullptr;  // [batch, max_pages]
  long long stride_table_batch = 0, stride_table_page = 0;
  long long page_size = 1;

  constexpr long long offset(long long b, const Sequence& sequence, long long row,
                             long long head) const {
    if (page_table != nullptr) {
      const long long slot = b * stride_table_batch + row / page_size * stride_table_page;
      return page_table[slot] * stride_batch + row % page_size * stride_row + head * stride_head;
    }
    return b * stride_batch + (sequence.begin + row) * stride_row + head * stride_head;
  }
};

}  // namespace sirdar
