#include "core/elements.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "shared/float_bits.h"

namespace sirdar {
namespace {

template <class T>
T raw(const TensorView& view, int64_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(view.data) + offset * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

template <class T>
void put(const TensorView& view, int64_t offset, T value) {
  std::memcpy(static_cast<char*>(view.data) + offset * int64_t{sizeof(T)}, &value, sizeof(T));
}

// Calls use(decode) where decode(offset) is the element as float64: one dispatch for a whole row.
template <class Use>
void with_decoder(const TensorView& view, Use use) {
  switch (view.dtype) {
    case DType::fp32:
      return use([&](int64_t n) { return static_cast<double>(raw<float>(view, n)); });
    case DType::bf16:
      return use([&](int64_t n) { return double{bf16_to_float(raw<uint16_t>(view, n))}; });
    case DType::fp16:
      return use([&](int64_t n) { return double{fp16_to_float(raw<uint16_t>(view, n))}; });
    case DType::fp8_e4m3:
      return use([&](int64_t n) { return double{e4m3_to_float(raw<uint8_t>(view, n))}; });
    case DType::fp8_e5m2:
      return use([&](int64_t n) { return double{e5m2_to_float(raw<uint8_t>(view, n))}; });
    case DType::int32:
      return use([&](int64_t n) { return static_cast<double>(raw<int32_t>(view, n)); });
    case DType::int64:
      return use([&](int64_t n) { return static_cast<double>(raw<int64_t>(view, n)); });
    case DType::boolean:
      return use([&](int64_t n) { return raw<uint8_t>(view, n) != 0 ? 1.0 : 0.0; });
  }
}

// float64 -> float so that a further rounding to a narrower format is as if made at once: what is
// lost is remembered in the last bit (round to odd).
float rounded_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (nearest == value || !std::isfinite(nearest)) return nearest;
  const bool overshot = std::abs(double{nearest}) > std::abs(value);
  const float truncated = overshot ? std::nextafterf(nearest, 0.0f) : nearest;
  uint32_t bits;
  std::memcpy(&bits, &truncated, sizeof(bits));
  bits |= 1;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

}  // namespace

double load_element(const TensorView& view, int64_t offset) {
  double value = 0;
  with_decoder(view, [&](auto decode) { value = decode(offset); });
  return value;
}

void load_row(const TensorView& view, int64_t offset, std::span<double> row) {
  with_decoder(view, [&](auto decode) {
    for (size_t c = 0; c < row.size(); ++c) row[c] = decode(offset + static_cast<int64_t>(c));
  });
}

void store_element(const TensorView& view, int64_t offset, double value) {
  store_row(view, offset, {&value, 1});
}

void store_row(const TensorView& view, int64_t offset, std::span<const double> row) {
  const auto with = [&](auto encode) {
    for (size_t c = 0; c < row.size(); ++c) {
      put(view, offset + static_cast<int64_t>(c), encode(row[c]));
    }
  };
  switch (view.dtype) {
    case DType::fp32:
      return with([](double x) { return static_cast<float>(x); });
    case DType::bf16:
      return with([](double x) { return float_to_bf16(rounded_to_odd(x)); });
    case DType::fp16:
      return with([](double x) { return float_to_fp16(rounded_to_odd(x)); });
    case DType::fp8_e4m3:
      return with([](double x) { return float_to_e4m3(rounded_to_odd(x)); });
    case DType::fp8_e5m2:
      return with([](double x) { return float_to_e5m2(rounded_to_odd(x)); });
    case DType::int32:
    case DType::int64:
    case DType::boolean:
      return;
  }
}

int64_t broadcast_offset(const TensorView& view, std::span<const int64_t> index, bool contiguous) {
  int64_t offset = 0, dense = 1;
  for (size_t axis = static_cast<size_t>(view.rank); axis-- > 0;) {
    if (view.shape[axis] > 1) offset += index[axis] * (contiguous ? dense : view.stride[axis]);
    dense *= view.shape[axis];
  }
  return offset;
}

int64_t element_count(const TensorView& view) {
  int64_t count = 1;
  for (int axis = 0; axis < view.rank; ++axis) count *= view.shape[static_cast<size_t>(axis)];
  return count;
}

std::vector<double> load_all(const TensorView& view) {
  std::vector<double> values(static_cast<size_t>(element_count(view)));
  for_each_element(view, [&](int64_t offset, int64_t index) {
    values[static_cast<size_t>(index)] = load_element(view, offset);
  });
  return values;
}

}  // namespace sirdar
