#include "cuda/tensor_map.h"

#include "cuda/driver.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>

namespace sirdar::cuda {
namespace {

constexpr int64_t kMaxDim = int64_t{1} << 32, kMaxStride = int64_t{1} << 40;
constexpr int kMaxBox = 256;

// The driver's number of an element type, or -1. Only widths and zeros matter to a copy.
int driver_dtype(DType dtype) {
  switch (dtype) {
    case DType::fp8_e4m3:
    case DType::fp8_e5m2:
    case DType::boolean:
      return 0;
    case DType::int32:
      return 3;
    case DType::int64:
      return 5;
    case DType::fp16:
      return 6;
    case DType::fp32:
      return 7;
    case DType::bf16:
      return 9;
  }
  return -1;
}

int driver_swizzle(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::none:
      return 0;
    case Swizzle::bytes_32:
      return 1;
    case Swizzle::bytes_64:
      return 2;
    case Swizzle::bytes_128:
      return 3;
  }
  return -1;
}

// The rule that one axis breaks, or nothing.
std::string broken_axis(const TensorMapSpec& spec, int axis) {
  const auto i = static_cast<size_t>(axis);
  if (spec.dims[i] < 1 || spec.dims[i] > kMaxDim)
    return fmt::format("axis {} has {} elements; 1 to 2^32 are allowed", axis, spec.dims[i]);
  if (spec.box[i] < 1 || spec.box[i] > kMaxBox)
    return fmt::format("the box has {} elements along axis {}; 1 to {} are allowed", spec.box[i],
                       axis, kMaxBox);
  if (axis == 0) return "";
  const int64_t stride = spec.stride_bytes[i - 1];
  if (stride < 0 || stride >= kMaxStride || stride % 16 != 0)
    return fmt::format(
        "the stride of axis {} is {} bytes; a multiple of 16 from 0 to 2^40 is allowed", axis,
        stride);
  return "";
}

std::string broken_rule(const TensorMapSpec& spec) {
  if (spec.rank < 1 || spec.rank > kMaxTensorMapRank)
    return fmt::format("rank {} is not from 1 to {}", spec.rank, kMaxTensorMapRank);
  if (driver_dtype(spec.dtype) < 0) return "its dtype is unknown";
  if (spec.base == nullptr || reinterpret_cast<uintptr_t>(spec.base) % 16 != 0)
    return fmt::format("its address {} is not a multiple of 16", spec.base);
  for (int axis = 0; axis < spec.rank; ++axis)
    if (std::string rule = broken_axis(spec, axis); !rule.empty()) return rule;
  const int64_t row_bytes = spec.box[0] * size_bytes(spec.dtype);
  const auto span = static_cast<int64_t>(spec.swizzle);
  if (row_bytes % 16 != 0)
    return fmt::format("a row of the box has {} bytes; a multiple of 16 is allowed", row_bytes);
  if (span != 0 && row_bytes > span)
    return fmt::format("a row of the box has {} bytes; with swizzle {} at most {} are allowed",
                       row_bytes, span, span);
  return "";
}

}  // namespace

std::string describe(const TensorMapSpec& spec) {
  const auto rank = static_cast<size_t>(spec.rank);
  const auto first = [](const auto& values, size_t count) {
    return std::span(values.data(), count);
  };
  return fmt::format("{} [{}] of [{}], strides [{}] bytes, swizzle {}, at {}", name_of(spec.dtype),
                     fmt::join(first(spec.box, rank), " x "),
                     fmt::join(first(spec.dims, rank), " x "),
                     fmt::join(first(spec.stride_bytes, rank - 1), ", "),
                     static_cast<int>(spec.swizzle), spec.base);
}

Status check_tensor_map(const TensorMapSpec& spec, std::string_view name) {
  const std::string rule = broken_rule(spec);
  if (rule.empty()) return {};
  return Status(StatusCode::invalid_argument,
                fmt::format("{}: {} for a copy by TMA; give it so, or take a kernel that copies "
                            "without TMA.",
                            name, rule),
                std::string(name));
}

Status make_tensor_map(const TensorMapSpec& spec, std::string_view name, TensorMap& map) {
  if (Status status = check_tensor_map(spec, name); !status.ok()) return status;
  const Result<const Driver*> found = driver();
  if (!found.ok()) return found.status();
  uint64_t dims[kMaxTensorMapRank], strides[kMaxTensorMapRank];
  uint32_t box[kMaxTensorMapRank], steps[kMaxTensorMapRank];
  for (size_t axis = 0; axis < static_cast<size_t>(spec.rank); ++axis) {
    dims[axis] = static_cast<uint64_t>(spec.dims[axis]);
    if (axis > 0) strides[axis - 1] = static_cast<uint64_t>(spec.stride_bytes[axis - 1]);
    box[axis] = static_cast<uint32_t>(spec.box[axis]);
    steps[axis] = 1;
  }
  const CuResult error = found.value()->tensor_map_encode(
      &map, driver_dtype(spec.dtype), static_cast<uint32_t>(spec.rank), spec.base, dims, strides,
      box, steps, 0, driver_swizzle(spec.swizzle), static_cast<int>(spec.l2_promotion), 0);
  if (error == 0) return {};
  return check(*found.value(), error,
               fmt::format("{}: cuTensorMapEncodeTiled of {}", name, describe(spec)));
}

}  // namespace sirdar::cuda
