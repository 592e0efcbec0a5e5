#include "cuda/sm90/arguments.h"

namespace sirdar::sm90 {

cuda::TensorMapSpec spec_of(const MapRequest& request) {
  const TensorView& view = request.view;
  const int rows_axis = request.layout == Layout::ragged ? 0 : 1;
  const size_t r = static_cast<size_t>(rows_axis);
  const RowMap strides = row_map(view, request.layout);
  cuda::TensorMapSpec spec;
  spec.base = view.data;
  spec.dtype = view.dtype;
  spec.rank = 4;
  spec.dims = {view.shape[r + 2], view.shape[r], view.shape[r + 1],
               request.layout == Layout::ragged ? 1 : view.shape[0]};
  const int64_t bytes = size_bytes(view.dtype);
  spec.stride_bytes = {strides.stride_row * bytes, strides.stride_head * bytes,
                       strides.stride_batch * bytes};
  spec.box = {64, request.box_rows, 1, 1};
  spec.swizzle = cuda::Swizzle::bytes_128;
  spec.l2_promotion = cuda::L2Promotion::bytes_256;
  return spec;
}

MaskForm mask_form(const Mask& mask) {
  if (mask.window_left || mask.chunk_size > 0) return MaskForm::interval;
  return mask.is_causal || mask.window_right ? MaskForm::upper : MaskForm::full;
}

int64_t heads_within(int64_t bytes, int64_t bytes_per_head, int64_t most) {
  int64_t heads = 1;
  while (heads < most && 2 * heads * bytes_per_head <= bytes) heads *= 2;
  return heads;
}

}  // namespace sirdar::sm90
