// The part of a launch's parameters that says how a product becomes a logit, which forward and
// backward have in common; and what both take.
#pragma once

#include "core/geometry.h"
#include "cuda/rows/forward/params.h"

#include <sirdar/plan.hpp>

namespace sirdar::rows {

// Whether each row begins at a multiple of `unit` bytes.
bool is_aligned(const TensorView& view, const RowMap& map, int64_t unit);

// What no kernel here takes, in words; `param_bytes` are those of a launch.
Status check_limits(const Problem& problem, const Device& device, size_t param_bytes);

template <class Params>
void add_scores(const Problem& problem, const Args& args, Params& params) {
  params.mask = structured_mask(problem.mask, 0, 0);
  params.is_top_left = problem.mask.alignment == Alignment::top_left;
  params.scale = problem.scale();
  params.softcap = problem.softcap;
  if (problem.has_bias) {
    params.bias = {args.bias.data, stride_or_zero(args.bias, 0), stride_or_zero(args.bias, 1),
                   stride_or_zero(args.bias, 2), stride_or_zero(args.bias, 3)};
  }
  if (problem.has_alibi) {
    const bool has_batch = args.alibi.rank == 2;
    params.alibi = static_cast<const float*>(args.alibi.data);
    params.stride_alibi_batch = has_batch ? stride_or_zero(args.alibi, 0) : 0;
    params.stride_alibi_head = stride_or_zero(args.alibi, has_batch ? 1 : 0);
  }
  if (problem.has_sink) {
    params.sink = static_cast<const float*>(args.sink.data);
    params.stride_sink = stride_or_zero(args.sink, 0);
  }
  if (problem.dropout_p > 0) {
    params.dropout = Dropout::of(double{problem.dropout_p}, args.dropout_seed, args.dropout_offset);
    params.keep_scale = static_cast<float>(params.dropout.keep_scale);
  }
}

}  // namespace sirdar::rows
