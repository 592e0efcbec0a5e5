#include "input_tensors.h"

#include "convert.h"
#include "parse.h"

#include <fmt/format.h>

#include <algorithm>

namespace sirdar::cli {

Status InputTensors::read(std::string_view flag, const std::string& file, Role role,
                          std::initializer_list<int> ranks, TensorView& view) {
  Result<io::Array> array = reader_.read(flag, file);
  if (!array.ok()) return array.status();
  const int rank = static_cast<int>(array.value().shape.size());
  if (std::ranges::find(ranks, rank) == ranks.end()) {
    return bad_flag(
        flag, fmt::format("shape {} has {} axes; it needs {}.",
                          io::print_shape(array.value().shape), rank, fmt::join(ranks, " or ")));
  }
  array = converted(flag, std::move(array).value(), role);
  if (!array.ok()) return array.status();
  arrays_.push_back(std::move(array).value());
  const io::Array& kept = arrays_.back();
  view = kept.view(*io::dtype_of(kept.type));
  return {};
}

Result<io::Array> InputTensors::converted(std::string_view flag, io::Array array, Role role) const {
  using io::ElementType;
  const ElementType type = array.type;
  const auto refused = [&](std::string_view allowed) {
    return bad_flag(
        flag, fmt::format("its element type is {}; {} is needed.", io::facts(type).name, allowed));
  };
  if (type == ElementType::fp64 && role != Role::index && role != Role::boolean && !dtype_) {
    return bad_flag(flag,
                    "its element type is fp64, which is not computed in; give --dtype to "
                    "round it.");
  }
  const bool is_index = type == ElementType::int32 || type == ElementType::int64;
  switch (role) {
    case Role::data:
      if (!is_float(type)) return refused("fp32, bf16, fp16 or fp8");
      return dtype_ ? rounded(std::move(array), *dtype_) : Result<io::Array>(std::move(array));
    case Role::bias:
      if (type == ElementType::bf16 || type == ElementType::fp16) return array;
      [[fallthrough]];
    case Role::number:
      if (!is_float(type)) return refused("fp32, bf16 or fp16");
      return rounded(std::move(array), DType::fp32);
    case Role::index:
      if (!is_index) return refused("int32 or int64");
      return as_int32(std::move(array), flag);
    case Role::boolean:
      if (type != ElementType::boolean) return refused("boolean");
      return array;
    case Role::expression:
      if (type == ElementType::boolean) return array;
      if (is_index) return as_int32(std::move(array), flag);
      if (!is_float(type)) return refused("fp32, bf16, fp16, int32, int64 or boolean");
      return rounded(std::move(array), DType::fp32);
  }
  return array;
}

}  // namespace sirdar::cli
