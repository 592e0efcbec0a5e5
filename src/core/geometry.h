// From a Problem and the views of one call to the plain structs of shared/: lengths, row offsets
// and structured masks. One place, used by every host implementation. Views must have been
// validated.
#pragma once

#include <sirdar/plan.hpp>

#include "shared/extents.h"
#include "shared/mask.h"

namespace sirdar {

// The stride of an axis, 0 where it has fewer than two entries (it is not read there).
inline int64_t stride_or_zero(const TensorView& view, int axis) {
  const size_t a = static_cast<size_t>(axis);
  return view.shape[a] < 2 ? 0 : view.stride[a];
}

inline IntArray int_array(const TensorView& view) {
  return {static_cast<const int*>(view.data), stride_or_zero(view, 0)};
}

inline Extents query_extents(const Problem& problem, const Args& args) {
  Extents result{problem.seqlen_q, {}, {}};
  if (problem.layout_q == Layout::ragged) result.cu_seqlens = int_array(args.cu_seqlens_q);
  if (problem.has_seqused_q) result.seqused = int_array(args.seqused_q);
  return result;
}

inline Extents key_extents(const Problem& problem, const Args& args) {
  Extents result{problem.seqlen_k, {}, {}};
  if (problem.layout_kv == Layout::ragged) result.cu_seqlens = int_array(args.cu_seqlens_k);
  if (problem.has_seqused_k) result.seqused = int_array(args.seqused_k);
  return result;
}

// q, k, v, out and their gradients. A paged view also needs the page table.
inline RowMap row_map(const TensorView& view, Layout layout, int64_t page_size = 0,
                      const TensorView& page_table = {}) {
  RowMap map;
  if (layout == Layout::ragged) {
    map.stride_row = stride_or_zero(view, 0);
    map.stride_head = stride_or_zero(view, 1);
    return map;
  }
  map.stride_batch = stride_or_zero(view, 0);
  map.stride_row = stride_or_zero(view, 1);
  map.stride_head = stride_or_zero(view, 2);
  if (layout == Layout::paged) {
    map.page_table = static_cast<const int*>(page_table.data);
    map.stride_table_batch = stride_or_zero(page_table, 0);
    map.stride_table_page = stride_or_zero(page_table, 1);
    map.page_size = page_size;
  }
  return map;
}

// lse, max_logit, dlse: [batch, num_heads_q, seqlen_q] or [num_heads_q, total_q].
inline RowMap row_statistics_map(const TensorView& view, Layout layout_q) {
  RowMap map;
  const int head_axis = layout_q == Layout::ragged ? 0 : 1;
  if (layout_q != Layout::ragged) map.stride_batch = stride_or_zero(view, 0);
  map.stride_head = stride_or_zero(view, head_axis);
  map.stride_row = stride_or_zero(view, head_axis + 1);
  return map;
}

// The structured masks of one sequence pair. Window sides and chunks past kUnbounded mean the same
// as kUnbounded and are cut there, so that sums of positions cannot overflow.
inline StructuredMask structured_mask(const Mask& mask, int64_t seqlen_q, int64_t seqlen_k) {
  const Position shift = mask.alignment == Alignment::bottom_right ? seqlen_k - seqlen_q : 0;
  StructuredMask result;
  result.length = {seqlen_k};
  result.is_causal = mask.is_causal;
  result.causal = {shift};
  result.has_window = mask.window_left.has_value() || mask.window_right.has_value();
  result.window = {shift, min_of(mask.window_left.value_or(kUnbounded), kUnbounded),
                   min_of(mask.window_right.value_or(kUnbounded), kUnbounded)};
  result.has_chunk = mask.chunk_size > 0;
  result.chunk = {shift, result.has_chunk ? min_of(mask.chunk_size, kUnbounded) : 1};
  return result;
}

}  // namespace sirdar
