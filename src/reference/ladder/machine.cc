#include "reference/ladder/machine.h"

#include <sirdar/status.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "shared/float_bits.h"

namespace sirdar::ladder {
namespace {

constexpr float kUnset = std::numeric_limits<float>::quiet_NaN();

void require_inside(const char* memory, int64_t offset, int64_t count, int64_t size) {
  if (offset >= 0 && count >= 0 && offset <= size - count) return;
  throw Error(
      {StatusCode::internal,
       fmt::format("ladder: elements {}..{} of an array of {} in {} memory were reached for.",
                   offset, offset + count, size, memory)});
}

}  // namespace

Counts operator-(const Counts& after, const Counts& before) {
  Counts between = after;
  between.matmul_flops -= before.matmul_flops;
  between.other_flops -= before.other_flops;
  between.exps -= before.exps;
  between.read_bytes -= before.read_bytes;
  between.written_bytes -= before.written_bytes;
  between.tiles -= before.tiles;
  between.masked_tiles -= before.masked_tiles;
  return between;
}

Slow::Slow(Slow&& other) noexcept
    : values_(std::move(other.values_)),
      owner_(std::exchange(other.owner_, nullptr)),
      elements_read_(other.elements_read_),
      elements_written_(other.elements_written_) {
  other.values_.clear();
}

Slow& Slow::operator=(Slow&& other) noexcept {
  std::swap(values_, other.values_);
  std::swap(owner_, other.owner_);
  std::swap(elements_read_, other.elements_read_);
  std::swap(elements_written_, other.elements_written_);
  return *this;
}

Slow::~Slow() {
  if (owner_) owner_->extra_used_ -= size();
}

Fast::Fast(Machine& owner, int64_t size)
    : values_(static_cast<size_t>(size), kUnset), owner_(owner) {}

Fast::~Fast() { owner_.fast_used_ -= size(); }

Machine::Machine(int64_t fast_memory_bytes, Precision precision)
    : fast_bytes_(fast_memory_bytes), precision_(precision) {}

Slow Machine::input(std::span<const float> values) {
  Slow array;
  array.values_.assign(values.begin(), values.end());
  for (float& value : array.values_) value = rounded(value);
  return array;
}

Slow Machine::output(int64_t size) {
  Slow array;
  array.values_.assign(static_cast<size_t>(size), kUnset);
  return array;
}

Slow Machine::scratch(int64_t size) {
  Slow array = output(size);
  array.owner_ = this;
  extra_used_ += size;
  counts_.peak_extra_bytes = std::max(counts_.peak_extra_bytes, extra_used_ * element_bytes());
  return array;
}

Fast Machine::fast(int64_t size) {
  if (size < 0 || size > fast_elements() - fast_used_) {
    throw Error(
        {StatusCode::invalid_argument,
         fmt::format("fast_memory: {} bytes do not hold this program's tiles, which need {} "
                     "bytes at this point; give more, or smaller blocks.",
                     fast_bytes_, (fast_used_ + size) * element_bytes()),
         "fast_memory"});
  }
  fast_used_ += size;
  counts_.peak_fast_bytes = std::max(counts_.peak_fast_bytes, fast_used_ * element_bytes());
  return Fast(*this, size);
}

void Machine::load(Fast& to, const Slow& from, int64_t from_offset, int64_t count) {
  require_inside("slow", from_offset, count, from.size());
  require_inside("fast", 0, count, to.size());
  std::copy_n(from.values_.data() + from_offset, count, to.values_.data());
  from.elements_read_ += count;
  counts_.read_bytes += count * element_bytes();
}

void Machine::store(Slow& to, int64_t to_offset, Fast& from, int64_t count) {
  require_inside("slow", to_offset, count, to.size());
  require_inside("fast", 0, count, from.size());
  std::copy_n(from.values_.data(), count, to.values_.data() + to_offset);
  to.elements_written_ += count;
  counts_.written_bytes += count * element_bytes();
}

float Machine::read(const Slow& from, int64_t offset) {
  require_inside("slow", offset, 1, from.size());
  ++from.elements_read_;
  counts_.read_bytes += element_bytes();
  return from.values_[static_cast<size_t>(offset)];
}

void Machine::write(Slow& to, int64_t offset, float value) {
  require_inside("slow", offset, 1, to.size());
  ++to.elements_written_;
  counts_.written_bytes += element_bytes();
  to.values_[static_cast<size_t>(offset)] = value;
}

float Machine::dot(const float* a, const float* b, int64_t size) {
  counts_.matmul_flops += 2 * size;
  float sum = 0;
  for (int64_t c = 0; c < size; ++c) sum = rounded(sum + rounded(a[c] * b[c]));
  return sum;
}

void Machine::add_scaled(float* y, float scale, const float* x, int64_t size) {
  counts_.matmul_flops += 2 * size;
  for (int64_t c = 0; c < size; ++c) y[c] = rounded(y[c] + rounded(scale * x[c]));
}

float Machine::exp(float x) { return ++counts_.exps, rounded(std::exp(x)); }

float Machine::log(float x) { return ++counts_.exps, rounded(std::log(x)); }

float Machine::round_to_fp16(float x) { return fp16_to_float(float_to_fp16(x)); }

}  // namespace sirdar::ladder
