#include "convert.h"

#include "parse.h"
#include "shared/float_bits.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace sirdar::cli {
namespace {

using io::ElementType;

template <class T>
T element(const std::byte* data, size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void put(std::byte* data, size_t index, T value) {
  std::memcpy(data + index * sizeof(T), &value, sizeof(T));
}

// float64 holds every element type exactly.
void decode(ElementType type, const std::byte* data, std::span<double> values) {
  const auto each = [&](auto read) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = read(i);
  };
  switch (type) {
    case ElementType::fp64:
      return each([&](size_t i) { return element<double>(data, i); });
    case ElementType::fp32:
      return each([&](size_t i) { return double{element<float>(data, i)}; });
    case ElementType::fp16:
      return each([&](size_t i) { return double{fp16_to_float(element<uint16_t>(data, i))}; });
    case ElementType::bf16:
      return each([&](size_t i) { return double{bf16_to_float(element<uint16_t>(data, i))}; });
    case ElementType::fp8_e4m3:
      return each([&](size_t i) { return double{e4m3_to_float(element<uint8_t>(data, i))}; });
    case ElementType::fp8_e5m2:
      return each([&](size_t i) { return double{e5m2_to_float(element<uint8_t>(data, i))}; });
    default:
      return;  // is_float() was asked
  }
}

// Rounds to odd: towards zero, with the last bit set where anything was lost. Rounding the result
// to a format with at least two bits less then gives what rounding `value` itself gives.
float to_odd_float(double value) {
  float result = static_cast<float>(value);
  if (std::isnan(value) || double{result} == value) return result;
  if (std::fabs(double{result}) > std::fabs(value)) result = std::nextafter(result, 0.0f);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(result) | 1u);
}

void encode(DType dtype, std::span<const double> values, std::byte* data) {
  const auto each = [&](auto convert) {
    for (size_t i = 0; i < values.size(); ++i) put(data, i, convert(values[i]));
  };
  switch (dtype) {
    case DType::fp32:
      return each([](double value) { return static_cast<float>(value); });
    case DType::bf16:
      return each([](double value) { return float_to_bf16(to_odd_float(value)); });
    case DType::fp16:
      return each([](double value) { return float_to_fp16(to_odd_float(value)); });
    case DType::fp8_e4m3:
      return each([](double value) { return float_to_e4m3(to_odd_float(value)); });
    case DType::fp8_e5m2:
      return each([](double value) { return float_to_e5m2(to_odd_float(value)); });
    default:
      return;  // not a floating-point type
  }
}

Result<io::Array> converted(const io::Array& array, DType to) {
  const int64_t from_bytes = io::facts(array.type).bytes, to_bytes = size_bytes(to);
  const std::optional<int64_t> bytes = io::checked_bytes(array.shape, to_bytes);
  Result<io::Buffer> buffer =
      io::Buffer::allocate(static_cast<uint64_t>(bytes.value_or(INT64_MAX)));
  if (!buffer.ok()) return buffer.status();
  const int64_t count = array.num_elements();
  std::array<double, 1024> block;
  for (int64_t begin = 0; begin < count; begin += static_cast<int64_t>(block.size())) {
    const size_t size =
        static_cast<size_t>(std::min(count - begin, static_cast<int64_t>(block.size())));
    const std::span<double> values(block.data(), size);
    decode(array.type, array.buffer.data() + begin * from_bytes, values);
    encode(to, values, buffer.value().data() + begin * to_bytes);
  }
  return io::Array{io::element_type_of(to), array.shape, std::move(buffer).value()};
}

}  // namespace

bool is_float(ElementType type) {
  switch (type) {
    case ElementType::fp64:
    case ElementType::fp32:
    case ElementType::fp16:
    case ElementType::bf16:
    case ElementType::fp8_e4m3:
    case ElementType::fp8_e5m2:
      return true;
    default:
      return false;
  }
}

Result<io::Array> rounded(io::Array array, DType to) {
  if (array.type == io::element_type_of(to)) return array;
  return converted(array, to);
}

Result<io::Array> widened_copy(const io::Array& array) { return converted(array, DType::fp32); }

Result<io::Array> as_int32(io::Array array, std::string_view flag) {
  if (array.type == ElementType::int32) return array;
  const int64_t count = array.num_elements();
  Result<io::Buffer> buffer = io::Buffer::allocate(static_cast<uint64_t>(count) * sizeof(int32_t));
  if (!buffer.ok()) return buffer.status();
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const int64_t value = element<int64_t>(array.buffer.data(), i);
    if (value < INT32_MIN || value > INT32_MAX) {
      return bad_flag(flag, fmt::format("element {} is {}, beyond int32; indices and lengths must "
                                        "fit 32 bits.",
                                        i, value));
    }
    put(buffer.value().data(), i, static_cast<int32_t>(value));
  }
  return io::Array{ElementType::int32, array.shape, std::move(buffer).value()};
}

}  // namespace sirdar::cli
