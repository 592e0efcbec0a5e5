// From a call's views to what the parameters of all Hopper kernels hold.
#pragma once

#include "core/geometry.h"
#include "cuda/sm90/tile.h"
#include "cuda/sm90/views.h"
#include "cuda/tensor_map.h"

#include <sirdar/plan.hpp>

#include <algorithm>
#include <optional>

namespace sirdar::sm90 {

// [batch, rows, heads, columns] or ragged [rows, heads, columns], as TMA counts: columns first, in
// boxes of 64 columns.
struct MapRequest {
  const TensorView& view;
  Layout layout;
  int box_rows;
  const char* name;  // the argument's, for messages
};
cuda::TensorMapSpec spec_of(const MapRequest& request);

inline RowView row_view(const TensorView& view, const RowMap& map) {
  return {view.data, map.stride_batch, map.stride_row, map.stride_head};
}
inline IntView int_view(const IntArray& array) { return {array.data, array.stride}; }

inline int bounded(const std::optional<int64_t>& side) {
  return static_cast<int>(std::min<int64_t>(side.value_or(kNoBound), kNoBound));
}

MaskForm mask_form(const Mask& mask);
Bias bias_form(const Problem& problem);

// The fields that MaskBounds reads.
template <class Params>
void add_mask(const Mask& mask, Params& params) {
  params.window_left = bounded(mask.window_left);
  params.window_right = mask.is_causal ? 0 : bounded(mask.window_right);
  params.chunk = mask.chunk_size > 0 ? bounded(mask.chunk_size) : kNoBound;
  params.is_top_left = mask.alignment == Alignment::top_left;
}

// A bias, of which without keys nothing is read.
BiasView bias_view(const Args& args);

// A bias as TMA brings it, in boxes of 128 bytes of so many rows; and ok, or why it cannot.
cuda::TensorMapSpec bias_spec(const TensorView& view, int box_rows);
Status check_bias_reach(const Args& args);

// What logits are made of besides scores, in the fields of those names.
template <class Params>
void add_terms(const Problem& problem, const Args& args, Params& params) {
  params.softcap = problem.softcap;
  if (problem.has_sink) {
    params.sink = static_cast<const float*>(args.sink.data);
    params.stride_sink = stride_or_zero(args.sink, 0);
  }
  if (problem.has_alibi) {
    const bool has_batch = args.alibi.rank == 2;
    params.alibi = static_cast<const float*>(args.alibi.data);
    params.stride_alibi_batch = has_batch ? stride_or_zero(args.alibi, 0) : 0;
    params.stride_alibi_head = stride_or_zero(args.alibi, has_batch ? 1 : 0);
  }
  if (problem.has_bias) params.bias = bias_view(args);
}

// Largest power of two of heads whose bytes fit, and at least one.
int64_t heads_within(int64_t bytes, int64_t bytes_per_head, int64_t most);

inline constexpr double kLog2eDouble = 1.4426950408889634;

// What both kernels take of devices, head dimensions and lengths: ok, or the reason.
Status check_limits(const Problem& problem, const Device& device, int64_t max_seqlen);

}  // namespace sirdar::sm90
