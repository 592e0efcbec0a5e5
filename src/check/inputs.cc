#include "check/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/elements.h"

namespace sirdar::check {
namespace {

constexpr size_t kGuard = 128;      // bytes on either side
constexpr std::byte kPoison{0xff};  // NaN in every float format, -1 in every integer one

}  // namespace

uint64_t Inputs::next() {  // splitmix64: the same numbers on every machine
  uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

double Inputs::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return radius * std::cos(6.283185307179586 * uniform());
}

TensorView Inputs::make(std::string name, DType dtype, std::vector<int64_t> shape, Order order,
                        bool is_output) {
  TensorView view;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::vector<size_t> axes(shape.size());  // slowest in memory first
  std::iota(axes.begin(), axes.end(), size_t{0});
  const size_t movable = order == Order::any || axes.empty() ? axes.size() : axes.size() - 1;
  if (hostile()) {
    for (size_t n = movable; n > 1; --n) {
      std::swap(axes[n - 1], axes[static_cast<size_t>(below(static_cast<int64_t>(n)))]);
    }
  }
  if (placement_.heads_first && order == Order::last_axis_dense && axes.size() == 4)
    std::swap(axes[1], axes[2]);
  int64_t stride = 1;
  for (size_t n = axes.size(); n-- > 0;) {
    const size_t axis = axes[n];
    const bool innermost = n + 1 == axes.size();
    if (hostile() && innermost && order == Order::any) stride = 1 + below(2);
    view.shape[axis] = shape[axis];
    view.stride[axis] = stride;
    stride *= std::max<int64_t>(shape[axis], 1);
    if (hostile()) stride += below(4);
    const int64_t elements = std::max<int64_t>(alignment_ / size_bytes(dtype), 1);
    stride = (stride + elements - 1) / elements * elements;
    // A stride of an axis with one entry means nothing; make sure that nobody reads it.
    if (hostile() && shape[axis] == 1 && !(innermost && order == Order::last_axis_dense)) {
      view.stride[axis] = std::numeric_limits<int64_t>::max() / 2;
    }
  }
  int64_t last = 0, count = 1;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    count *= shape[axis];
    if (shape[axis] > 1) last += (shape[axis] - 1) * view.stride[axis];
  }
  const size_t element = static_cast<size_t>(size_bytes(dtype));
  buffers_.emplace_back();
  Buffer& buffer = buffers_.back();
  buffer.bytes = Bytes(PageAllocator<std::byte>(placement_.pages));
  buffer.name = std::move(name);
  buffer.is_output = is_output;
  buffer.size = count == 0 ? 0 : (static_cast<size_t>(last) + 1) * element;
  buffer.bytes.assign(buffer.size + 2 * kGuard + 128 + element, kPoison);
  const size_t address = reinterpret_cast<size_t>(buffer.bytes.data()) + kGuard;
  buffer.begin = kGuard + (64 - address % 64) % 64 +
                 (hostile() ? std::max(element, static_cast<size_t>(alignment_)) : 0);
  view.data = buffer.bytes.data() + buffer.begin;
  if (is_output) {
    buffer.owned.assign(buffer.bytes.size(), false);
    for_each_element(view, [&](int64_t offset, int64_t) {
      const size_t at = buffer.begin + static_cast<size_t>(offset) * element;
      for (size_t n = 0; n < element; ++n) buffer.owned[at + n] = true;
    });
  }
  return view;
}

void Inputs::accept() {
  for (Buffer& buffer : buffers_) {
    if (!buffer.is_output) buffer.accepted.assign(buffer.bytes.begin(), buffer.bytes.end());
  }
}

void Inputs::reset_outputs() {
  for (Buffer& buffer : buffers_) {
    if (buffer.is_output) std::fill(buffer.bytes.begin(), buffer.bytes.end(), kPoison);
  }
}

void Inputs::set_workspace(size_t bytes) {
  std::erase_if(buffers_, [](const Buffer& buffer) { return buffer.name == "workspace"; });
  args_.workspace = nullptr;
  args_.workspace_bytes = bytes;
  if (bytes == 0) return;
  buffers_.emplace_back();
  Buffer& buffer = buffers_.back();
  buffer.name = "workspace";
  buffer.is_output = true;
  buffer.size = bytes;
  buffer.bytes.assign(bytes + 2 * kGuard + 64, kPoison);
  const size_t address = reinterpret_cast<size_t>(buffer.bytes.data()) + kGuard;
  buffer.begin = kGuard + (64 - address % 64) % 64;
  args_.workspace = buffer.bytes.data() + buffer.begin;
}

std::string Inputs::damage() const {
  for (const Buffer& buffer : buffers_) {
    for (size_t n = 0; n < buffer.bytes.size(); ++n) {
      const bool inside = n >= buffer.begin && n < buffer.begin + buffer.size;
      const int64_t at = static_cast<int64_t>(n) - static_cast<int64_t>(buffer.begin);
      if (!buffer.is_output) {
        if (n < buffer.accepted.size() && buffer.bytes[n] != buffer.accepted[n]) {
          return fmt::format("{}: an input was written at byte {} of {}", buffer.name, at,
                             buffer.size);
        }
      } else if (buffer.bytes[n] != kPoison && !(buffer.owned.empty() ? inside : buffer.owned[n])) {
        return fmt::format("{}: memory {} was written at byte {} of {}", buffer.name,
                           inside ? "between rows" : "outside the tensor", at, buffer.size);
      }
    }
  }
  return {};
}

}  // namespace sirdar::check
