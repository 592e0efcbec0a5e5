#include "cuda/rows/scores.h"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/modified_params.h"

namespace sirdar::rows {
namespace {

constexpr int64_t kMaxSeqlen = int64_t{1} << 30;  // positions and their sums are 32-bit
constexpr int64_t kMaxHeads = int64_t{1} << 30;
constexpr int kMinArch = 70;  // lanes of a warp may diverge and meet again

Status unsupported(std::string reason) { return {StatusCode::unsupported, std::move(reason)}; }

}  // namespace

bool is_aligned(const TensorView& view, const RowMap& map, int64_t unit) {
  const int64_t bytes = size_bytes(view.dtype);
  const auto fits = [&](int64_t stride) { return stride * bytes % unit == 0; };
  return reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(unit) == 0 &&
         fits(map.stride_batch) && fits(map.stride_row) && fits(map.stride_head);
}

Status check_limits(const Problem& problem, const Device& device, size_t param_bytes) {
  if (device.kind != DeviceKind::cuda) {
    return unsupported(fmt::format("runs on an NVIDIA GPU, and {} is a CPU", device.name));
  }
  if (device.arch < kMinArch) {
    return unsupported(fmt::format("runs on sm_{} and newer, and {} is sm_{}", kMinArch,
                                   device.name, device.arch));
  }
  if (std::max({problem.seqlen_q, problem.seqlen_k, problem.total_q, problem.total_k}) >
      kMaxSeqlen) {
    return unsupported(fmt::format("takes up to {} rows", kMaxSeqlen));
  }
  if (problem.num_heads_q > kMaxHeads / std::max<int64_t>(problem.batch, 1)) {
    return unsupported(fmt::format("takes up to {} heads of all sequences", kMaxHeads));
  }
  if (param_bytes > cuda::kMaxParamBytes) {
    return unsupported(
        fmt::format("takes tensors and scalars of expressions that fit the {} bytes of a kernel's "
                    "parameters, about 50 tensors",
                    cuda::kMaxParamBytes));
  }
  return {};
}

}  // namespace sirdar::rows
