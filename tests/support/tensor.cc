#include "support/tensor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

namespace sirdar::test {
namespace {

constexpr size_t kGuardBytes = 64;
// Every 2 and 4 byte lane of this pattern is a NaN of fp32, bf16, fp16 and both fp8 kinds, a
// negative number of int32 and true as a boolean.
constexpr uint8_t kPoison = 0xff;

struct Format {
  int exponent_bits, mantissa_bits;
  bool has_infinity;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int min_exponent() const { return 1 - bias(); }
  int max_exponent() const { return (1 << exponent_bits) - (has_infinity ? 2 : 1) - bias(); }
};

bool small_format(DType dtype, Format* format) {
  if (dtype == DType::bf16) return *format = {8, 7, true}, true;
  if (dtype == DType::fp16) return *format = {5, 10, true}, true;
  if (dtype == DType::fp8_e4m3) return *format = {4, 3, false}, true;
  if (dtype == DType::fp8_e5m2) return *format = {5, 2, true}, true;
  return false;
}

double decode(const Format& f, uint32_t code) {
  const uint32_t mantissa = code & ((1u << f.mantissa_bits) - 1);
  const uint32_t exponent = (code >> f.mantissa_bits) & ((1u << f.exponent_bits) - 1);
  const bool negative = (code >> (f.mantissa_bits + f.exponent_bits)) & 1;
  const bool top = exponent == (1u << f.exponent_bits) - 1;
  double value;
  if (top && f.has_infinity) {
    value = mantissa ? std::numeric_limits<double>::quiet_NaN()
                     : std::numeric_limits<double>::infinity();
  } else if (top && mantissa == (1u << f.mantissa_bits) - 1) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, f.min_exponent() - f.mantissa_bits);
  } else {
    value = std::ldexp((1u << f.mantissa_bits) + mantissa,
                       static_cast<int>(exponent) - f.bias() - f.mantissa_bits);
  }
  return negative ? -value : value;
}

uint32_t encode(const Format& f, double value) {
  const uint32_t sign = std::signbit(value) ? 1u << (f.mantissa_bits + f.exponent_bits) : 0;
  const uint32_t all_ones = (1u << (f.mantissa_bits + f.exponent_bits)) - 1;
  const uint32_t infinity = ((1u << f.exponent_bits) - 1) << f.mantissa_bits;
  if (std::isnan(value)) return sign | all_ones;
  const double size = std::fabs(value);
  if (size == 0) return sign;
  const int floor_exponent = std::isinf(size) ? 0 : std::max(std::ilogb(size), f.min_exponent());
  const double quantum = std::ldexp(1.0, floor_exponent - f.mantissa_bits);
  const double rounded = std::isinf(size) ? size : std::nearbyint(size / quantum) * quantum;
  if (rounded == 0) return sign;
  const double largest = f.has_infinity ? std::ldexp(2.0, f.max_exponent()) : 464.0;
  if (rounded >= largest) return sign | (f.has_infinity ? infinity : all_ones);
  const int exponent = std::ilogb(rounded);
  if (exponent < f.min_exponent()) return sign | static_cast<uint32_t>(rounded / quantum);
  const double fraction = std::ldexp(rounded, f.mantissa_bits - exponent);
  const auto mantissa = static_cast<uint32_t>(fraction) & ((1u << f.mantissa_bits) - 1);
  return sign | static_cast<uint32_t>(exponent + f.bias()) << f.mantissa_bits | mantissa;
}

template <class T>
T read(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void write(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

Shape contiguous_strides(const Shape& shape) {
  Shape stride(shape.size(), 1);
  for (size_t axis = shape.size(); axis-- > 1;) {
    stride[axis - 1] = stride[axis] * std::max<int64_t>(shape[axis], 1);
  }
  return stride;
}

}  // namespace

double load(DType dtype, const void* element) {
  Format format{};
  if (small_format(dtype, &format)) {
    const bool wide = size_bytes(dtype) == 2;
    return decode(format, wide ? read<uint16_t>(element) : read<uint8_t>(element));
  }
  switch (dtype) {
    case DType::fp32:
      return read<float>(element);
    case DType::int32:
      return read<int32_t>(element);
    case DType::int64:
      return static_cast<double>(read<int64_t>(element));
    default:
      return read<uint8_t>(element) != 0;
  }
}

void store(DType dtype, void* element, double value) {
  Format format{};
  if (small_format(dtype, &format)) {
    const uint32_t code = encode(format, value);
    if (size_bytes(dtype) == 2) return write(element, static_cast<uint16_t>(code));
    return write(element, static_cast<uint8_t>(code));
  }
  switch (dtype) {
    case DType::fp32:
      return write(element, static_cast<float>(value));
    case DType::int32:
      return write(element, static_cast<int32_t>(value));
    case DType::int64:
      return write(element, static_cast<int64_t>(value));
    default:
      return write(element, static_cast<uint8_t>(value != 0));
  }
}

Tensor::Tensor(DType dtype, const Shape& shape) : Tensor(dtype, shape, contiguous_strides(shape)) {}

Tensor::Tensor(DType dtype, const Shape& shape, const Shape& stride, int64_t offset)
    : shape_(shape) {
  int64_t below = 0, above = 0;  // reach of the elements before and after element zero
  bool empty = false;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    empty |= shape[axis] == 0;
    const int64_t reach = (std::max<int64_t>(shape[axis], 1) - 1) * stride[axis];
    (reach < 0 ? below : above) += reach;
  }
  const int64_t count = empty ? 0 : above - below + 1;
  const auto element_bytes = static_cast<size_t>(size_bytes(dtype));
  const size_t guard_bytes = kGuardBytes + static_cast<size_t>(offset + 1) * element_bytes;
  const size_t bytes = static_cast<size_t>(count) * element_bytes + guard_bytes + kGuardBytes;
  memory_ = std::make_shared<std::vector<uint8_t>>(bytes, kPoison);
  view_.dtype = dtype;
  view_.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view_.shape.begin());
  std::copy(stride.begin(), stride.end(), view_.stride.begin());
  view_.data =
      memory_->data() + guard_bytes + static_cast<size_t>(empty ? 0 : -below) * element_bytes;
}

int64_t Tensor::size() const {
  int64_t count = 1;
  for (const int64_t n : shape_) count *= n;
  return present() ? count : 0;
}

uint8_t* Tensor::address(int64_t n) const {
  int64_t offset = 0;
  for (size_t axis = shape_.size(); axis-- > 0;) {
    offset += n % shape_[axis] * view_.stride[axis];
    n /= shape_[axis];
  }
  return static_cast<uint8_t*>(view_.data) + offset * size_bytes(view_.dtype);
}

static int64_t linear(const Shape& shape, Index index) {
  int64_t n = 0;
  size_t axis = 0;
  for (const int64_t i : index) n = n * shape[axis++] + i;
  return n;
}

double Tensor::at(Index index) const { return flat(linear(shape_, index)); }
Tensor& Tensor::set(Index index, double value) { return set_flat(linear(shape_, index), value); }
double Tensor::flat(int64_t n) const { return load(view_.dtype, address(n)); }

Tensor& Tensor::set_flat(int64_t n, double value) {
  store(view_.dtype, address(n), value);
  return *this;
}

Tensor& Tensor::fill(double value) {
  for (int64_t n = 0; n < size(); ++n) set_flat(n, value);
  return *this;
}

Tensor& Tensor::fill(const std::vector<double>& values) {
  for (int64_t n = 0; n < size(); ++n) set_flat(n, values.at(static_cast<size_t>(n)));
  return *this;
}

Tensor& Tensor::fill_random(uint64_t seed, double scale) {
  Random random(seed);
  const int64_t columns = shape_.empty() ? 1 : shape_.back();
  const int64_t outlier = columns >= 8 ? random.between(0, columns - 1) : -1;
  for (int64_t n = 0; n < size(); ++n) {
    set_flat(n, random.normal() * scale * (n % columns == outlier ? 4 : 1));
  }
  return *this;
}

Tensor& Tensor::fill_by(const std::function<double(const int64_t*)>& f) {
  for (int64_t n = 0; n < size(); ++n) {
    std::array<int64_t, kMaxRank> coordinates{};
    int64_t rest = n;
    for (size_t axis = shape_.size(); axis-- > 0;) {
      coordinates[axis] = rest % shape_[axis];
      rest /= shape_[axis];
    }
    set_flat(n, f(coordinates.data()));
  }
  return *this;
}

std::vector<double> Tensor::values() const {
  std::vector<double> result;
  for (int64_t n = 0; n < size(); ++n) result.push_back(flat(n));
  return result;
}

std::vector<uint8_t> Tensor::bits() const {
  std::vector<uint8_t> result;
  const auto bytes = size_bytes(view_.dtype);
  for (int64_t n = 0; n < size(); ++n) result.insert(result.end(), address(n), address(n) + bytes);
  return result;
}

bool Tensor::gaps_intact() const {
  if (!present()) return true;
  std::vector<bool> owned(memory_->size(), false);
  for (int64_t n = 0; n < size(); ++n) {
    const auto start = static_cast<size_t>(address(n) - memory_->data());
    for (size_t i = 0; i < static_cast<size_t>(size_bytes(view_.dtype)); ++i)
      owned[start + i] = true;
  }
  for (size_t i = 0; i < owned.size(); ++i) {
    if (!owned[i] && (*memory_)[i] != kPoison) return false;
  }
  return true;
}

uint64_t Random::bits() {  // splitmix64
  state_ += 0x9e3779b97f4a7c15ull;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

double Random::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

int64_t Random::between(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
}

}  // namespace sirdar::test
