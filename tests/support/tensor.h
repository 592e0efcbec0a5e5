// Memory of one tensor for a test, shared by copies: elements at the given strides, NaN in every
// gap, guard bytes at both ends. Elements are read and written as double at logical coordinates.
#pragma once

#include <sirdar/tensor.hpp>

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

namespace sirdar::test {

using Shape = std::vector<int64_t>;
using Index = std::initializer_list<int64_t>;

class Tensor {
 public:
  Tensor() = default;  // absent
  Tensor(DType dtype, const Shape& shape);
  // `stride` in elements, any sign; zero makes entries share memory.
  // The address is a multiple of one element's size, moved on by `offset` elements.
  Tensor(DType dtype, const Shape& shape, const Shape& stride, int64_t offset = 0);

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }
  bool present() const { return view_.present(); }
  int64_t size() const;  // logical elements
  const Shape& shape() const { return shape_; }

  double at(Index index) const;
  Tensor& set(Index index, double value);  // rounded to the dtype
  double flat(int64_t n) const;            // n counts logical elements in row-major order
  Tensor& set_flat(int64_t n, double value);
  Tensor& fill(double value);
  Tensor& fill(const std::vector<double>& values);
  // Normal values with, now and then, an outlier channel ten times larger.
  Tensor& fill_random(uint64_t seed, double scale = 1);
  // value = f(coordinates); coordinates always has four entries, absent axes are 0.
  Tensor& fill_by(const std::function<double(const int64_t*)>& f);

  std::vector<double> values() const;
  std::vector<uint8_t> bits() const;  // the elements' bytes in row-major order
  // The bytes outside every element, guards included, are as they were at construction.
  bool gaps_intact() const;

 private:
  uint8_t* address(int64_t n) const;

  TensorView view_;
  Shape shape_;
  std::shared_ptr<std::vector<uint8_t>> memory_;
};

// One element as a number, and back with round to nearest even.
double load(DType dtype, const void* element);
void store(DType dtype, void* element, double value);

// A small reproducible generator: uniform in [0, 1).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 0x1234567ull) {}
  uint64_t bits();
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double normal();
  int64_t between(int64_t low, int64_t high);  // both included

 private:
  uint64_t state_;
};

}  // namespace sirdar::test
