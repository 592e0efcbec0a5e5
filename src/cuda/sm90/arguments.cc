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

Bias bias_form(const Problem& problem) {
  if (!problem.has_bias) return Bias::none;
  return problem.dtype_bias == DType::bf16   ? Bias::bf16
         : problem.dtype_bias == DType::fp16 ? Bias::fp16
                                             : Bias::fp32;
}

BiasView bias_view(const Args& args) {
  const TensorView& view = args.bias;
  BiasView bias{};
  if (std::count(view.shape.begin(), view.shape.end(), 0) > 0) {
    bias.data = args.q.data;  // read from, for nothing: there are no keys
    return bias;
  }
  bias.data = view.data;
  bias.stride_batch = stride_or_zero(view, 0);
  bias.stride_head = stride_or_zero(view, 1);
  bias.stride_row = stride_or_zero(view, 2);
  bias.stride_key = stride_or_zero(view, 3);
  const int64_t strides = bias.stride_batch | bias.stride_head | bias.stride_row;
  const auto pair_bytes = static_cast<uintptr_t>(2 * size_bytes(view.dtype));
  bias.reads_pairs = bias.stride_key == 1 && strides % 2 == 0 &&
                     reinterpret_cast<uintptr_t>(view.data) % pair_bytes == 0;
  return bias;
}

cuda::TensorMapSpec bias_spec(const TensorView& view, int box_rows) {
  cuda::TensorMapSpec spec;
  const int64_t bytes = size_bytes(view.dtype);
  spec.base = view.data;
  spec.dtype = view.dtype;
  spec.rank = 4;
  spec.dims = {view.shape[3], view.shape[2], 1, 1};
  spec.stride_bytes = {view.stride[2] * bytes, 16, 16};
  for (const size_t axis : {1, 0}) {  // what repeats is one head, one sequence
    if (stride_or_zero(view, static_cast<int>(axis)) == 0) continue;
    spec.dims[3 - axis] = view.shape[axis];
    spec.stride_bytes[2 - axis] = view.stride[axis] * bytes;
  }
  spec.box = {static_cast<int>(128 / bytes), box_rows, 1, 1};
  spec.swizzle = cuda::Swizzle::bytes_128;
  spec.l2_promotion = cuda::L2Promotion::bytes_256;
  return spec;
}

Status check_bias_reach(const Args& args) {
  const TensorView& view = args.bias;
  if (stride_or_zero(view, 3) != 1 || stride_or_zero(view, 2) == 0) {
    return {StatusCode::unsupported, "bias: its rows are not rows of memory"};
  }
  return cuda::check_tensor_map(bias_spec(view, 64), "bias");
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
