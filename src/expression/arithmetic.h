// The arithmetic of the language where it differs from C++'s, in one place. Ints are 32 bits and
// wrap, so that every machine agrees; a zero divisor gives 0; min and max propagate NaN and prefer
// the first operand when both are equal.
#pragma once

#include "expression/ast.h"

#include <cmath>

namespace sirdar::expression {

constexpr int32_t wrap(int64_t value) { return static_cast<int32_t>(static_cast<uint32_t>(value)); }

constexpr int32_t divide(int32_t a, int32_t b) { return b == 0 ? 0 : wrap(int64_t{a} / b); }
constexpr int32_t remainder(int32_t a, int32_t b) { return b == 0 ? 0 : wrap(int64_t{a} % b); }

constexpr int32_t apply(Op op, int32_t a, int32_t b) {
  switch (op) {
    case Op::add:
      return wrap(int64_t{a} + b);
    case Op::subtract:
      return wrap(int64_t{a} - b);
    case Op::multiply:
      return wrap(int64_t{a} * b);
    case Op::divide:
      return divide(a, b);
    case Op::remainder:
      return remainder(a, b);
    case Op::min:
      return a <= b ? a : b;
    default:
      return a >= b ? a : b;  // max
  }
}

constexpr int32_t apply(Op op, int32_t a) {
  return op == Op::negate || a < 0 ? wrap(-int64_t{a}) : a;  // negate or abs
}

// Whether min or max takes its first operand.
constexpr bool takes_first(Op op, double a, double b) {
  return a != a || (op == Op::min ? a <= b : a >= b);
}

constexpr double apply(Op op, double a, double b) {
  switch (op) {
    case Op::add:
      return a + b;
    case Op::subtract:
      return a - b;
    case Op::multiply:
      return a * b;
    case Op::divide:
      return a / b;
    default:
      return takes_first(op, a, b) ? a : b;  // min, max
  }
}

inline double apply(Op op, double a) {
  switch (op) {
    case Op::negate:
      return -a;
    case Op::abs:
      return std::fabs(a);
    case Op::floor:
      return std::floor(a);
    case Op::exp:
      return std::exp(a);
    case Op::exp2:
      return std::exp2(a);
    case Op::log:
      return std::log(a);
    case Op::tanh:
      return std::tanh(a);
    case Op::sigmoid:
      return 1 / (1 + std::exp(-a));
    default:
      return std::sqrt(a);
  }
}

template <class T>
constexpr bool compare(Op op, T a, T b) {
  switch (op) {
    case Op::less:
      return a < b;
    case Op::less_equal:
      return a <= b;
    case Op::greater:
      return a > b;
    case Op::greater_equal:
      return a >= b;
    case Op::equal:
      return a == b;
    default:
      return a != b;
  }
}

}  // namespace sirdar::expression
