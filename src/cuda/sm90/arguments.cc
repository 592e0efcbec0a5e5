#include "cuda/sm90/arguments.h"

#include <fmt/format.h>

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

Status check_limits(const Problem& problem, const Device& device, int64_t max_seqlen) {
  constexpr int kMaxHeadDim = 256;
  const auto unsupported = [](std::string reason) {
    return Status(StatusCode::unsupported, std::move(reason));
  };
  if (device.kind != DeviceKind::cuda) {
    return unsupported(fmt::format("runs on a Hopper GPU, and {} is a CPU", device.name));
  }
  if (device.arch != 90) {
    return unsupported(
        fmt::format("uses instructions of sm_90 alone, and {} is sm_{}", device.name, device.arch));
  }
  const int64_t widest = std::max(problem.head_dim, problem.value_dim());
  if (problem.head_dim % 8 != 0 || problem.value_dim() % 8 != 0 || widest > kMaxHeadDim) {
    return unsupported(
        fmt::format("takes head_dim and head_dim_v that are multiples of 8 up to {}, "
                    "not {} and {}",
                    kMaxHeadDim, problem.head_dim, problem.value_dim()));
  }
  if (std::max({problem.seqlen_q, problem.seqlen_k, problem.total_q, problem.total_k}) >
      max_seqlen) {
    return unsupported(fmt::format("takes up to {} rows", max_seqlen));
  }
  return {};
}

}  // namespace sirdar::sm90
