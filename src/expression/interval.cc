#include "expression/interval.h"

#include <initializer_list>

namespace sirdar::expression {
namespace {

IntRange multiply(IntRange a, IntRange b) {
  const auto [lo, hi] = std::minmax({a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi});
  return wrapped(lo, hi);
}

// b has one sign and no zero: the quotient is then monotone in each operand.
IntRange divide_signed(IntRange a, IntRange b) {
  const auto [lo, hi] = std::minmax({a.lo / b.lo, a.lo / b.hi, a.hi / b.lo, a.hi / b.hi});
  return wrapped(lo, hi);
}

IntRange divide(IntRange a, IntRange b) {
  std::optional<IntRange> result;
  auto add = [&](IntRange part) { result = result ? hull(*result, part) : part; };
  if (b.lo <= 0 && b.hi >= 0) add({0, 0});
  if (b.lo < 0) add(divide_signed(a, {b.lo, std::min<int64_t>(b.hi, -1)}));
  if (b.hi > 0) add(divide_signed(a, {std::max<int64_t>(b.lo, 1), b.hi}));
  return *result;
}

IntRange remainder(IntRange a, IntRange b) {
  if (b.lo == b.hi && b.lo != 0 && a.lo / b.lo == a.hi / b.lo) return {a.lo % b.lo, a.hi % b.lo};
  const int64_t divisor = std::max(std::abs(b.lo), std::abs(b.hi));
  const int64_t largest = std::max<int64_t>(divisor - 1, 0);
  return {a.lo < 0 ? std::max(a.lo, -largest) : 0, a.hi > 0 ? std::min(a.hi, largest) : 0};
}

constexpr bool has_zero(RealRange a) { return a.lo <= 0 && a.hi >= 0; }
constexpr bool has_infinity(RealRange a) { return a.lo == kAnyReal.lo || a.hi == kAnyReal.hi; }

// The least interval around some values. A NaN among them stands for 0 times infinity, whose
// neighbours are 0; the NaN itself is the caller's to report.
RealRange around(std::initializer_list<double> values, bool may_be_nan) {
  RealRange range{kAnyReal.hi, kAnyReal.lo, may_be_nan};
  for (double value : values) {
    if (value != value) value = 0;
    range.lo = std::min(range.lo, value);
    range.hi = std::max(range.hi, value);
  }
  return range;
}

RealRange add(RealRange a, RealRange b, bool may_be_nan) {
  const bool opposite =
      (a.hi == kAnyReal.hi && b.lo == kAnyReal.lo) || (a.lo == kAnyReal.lo && b.hi == kAnyReal.hi);
  if (opposite) return kAnyReal;
  return {a.lo + b.lo, a.hi + b.hi, may_be_nan};
}

RealRange multiply(RealRange a, RealRange b, bool may_be_nan) {
  may_be_nan = may_be_nan || (has_zero(a) && has_infinity(b)) || (has_infinity(a) && has_zero(b));
  return around({a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi}, may_be_nan);
}

RealRange divide(RealRange a, RealRange b, bool may_be_nan) {
  if (has_zero(b) || (has_infinity(a) && has_infinity(b))) return kAnyReal;
  return around({a.lo / b.lo, a.lo / b.hi, a.hi / b.lo, a.hi / b.hi}, may_be_nan);
}

// Library functions are monotone only up to their own rounding.
RealRange widened(double lo, double hi, bool may_be_nan) {
  constexpr double kUlps = 8 * std::numeric_limits<double>::epsilon();
  constexpr double kTiny = std::numeric_limits<double>::denorm_min();
  if (!std::isinf(lo)) lo -= std::fabs(lo) * kUlps + kTiny;
  if (!std::isinf(hi)) hi += std::fabs(hi) * kUlps + kTiny;
  return {lo, hi, may_be_nan};
}

template <class R>
Truth compare_ranges(Op op, const R& a, const R& b) {
  const bool is_one_value = a.lo == a.hi && b.lo == b.hi && a.lo == b.lo;
  const bool may_be_equal = a.lo <= b.hi && b.lo <= a.hi;
  switch (op) {
    case Op::less:
      return {a.lo < b.hi, a.hi >= b.lo};
    case Op::less_equal:
      return {a.lo <= b.hi, a.hi > b.lo};
    case Op::greater:
      return {b.lo < a.hi, b.hi >= a.lo};
    case Op::greater_equal:
      return {b.lo <= a.hi, b.hi > a.lo};
    case Op::equal:
      return {may_be_equal, !is_one_value};
    default:
      return {!is_one_value, may_be_equal};
  }
}

}  // namespace

IntRange apply(Op op, IntRange a, IntRange b) {
  switch (op) {
    case Op::add:
      return wrapped(a.lo + b.lo, a.hi + b.hi);
    case Op::subtract:
      return wrapped(a.lo - b.hi, a.hi - b.lo);
    case Op::multiply:
      return multiply(a, b);
    case Op::divide:
      return divide(a, b);
    case Op::remainder:
      return remainder(a, b);
    case Op::min:
      return {std::min(a.lo, b.lo), std::min(a.hi, b.hi)};
    default:
      return {std::max(a.lo, b.lo), std::max(a.hi, b.hi)};
  }
}

IntRange apply(Op op, IntRange a) {
  if (op == Op::negate) return wrapped(-a.hi, -a.lo);
  const bool crosses = a.lo < 0 && a.hi > 0;  // abs
  const int64_t low = std::abs(a.lo), high = std::abs(a.hi);
  return wrapped(crosses ? 0 : std::min(low, high), std::max(low, high));
}

RealRange apply(Op op, RealRange a, RealRange b) {
  const bool may_be_nan = a.may_be_nan || b.may_be_nan;
  switch (op) {
    case Op::add:
      return add(a, b, may_be_nan);
    case Op::subtract:
      return add(a, {-b.hi, -b.lo, b.may_be_nan}, may_be_nan);
    case Op::multiply:
      return multiply(a, b, may_be_nan);
    case Op::divide:
      return divide(a, b, may_be_nan);
    case Op::min:
      return {std::min(a.lo, b.lo), std::min(a.hi, b.hi), may_be_nan};
    default:
      return {std::max(a.lo, b.lo), std::max(a.hi, b.hi), may_be_nan};
  }
}

RealRange apply(Op op, RealRange a) {
  const bool is_partial = op == Op::log || op == Op::sqrt;  // NaN below 0
  if (is_partial && a.hi < 0) return kAnyReal;
  if (is_partial && a.lo < 0) a = {0, a.hi, true};
  switch (op) {
    case Op::negate:
      return {-a.hi, -a.lo, a.may_be_nan};
    case Op::abs: {
      const double low = std::fabs(a.lo), high = std::fabs(a.hi);
      return {has_zero(a) ? 0 : std::min(low, high), std::max(low, high), a.may_be_nan};
    }
    case Op::floor:
      return {std::floor(a.lo), std::floor(a.hi), a.may_be_nan};
    default:
      break;
  }
  RealRange range = widened(apply(op, a.lo), apply(op, a.hi), a.may_be_nan);
  if (op == Op::tanh) range = {std::max(range.lo, -1.0), std::min(range.hi, 1.0), range.may_be_nan};
  if (op == Op::exp || op == Op::exp2 || op == Op::sigmoid) range.lo = std::max(range.lo, 0.0);
  if (op == Op::sigmoid) range.hi = std::min(range.hi, 1.0);
  return range;
}

Truth compare(Op op, IntRange a, IntRange b) { return compare_ranges(op, a, b); }

Truth compare(Op op, RealRange a, RealRange b) {
  Truth truth = compare_ranges(op, a, b);
  if (!a.may_be_nan && !b.may_be_nan) return truth;
  (op == Op::not_equal ? truth.may_be_true : truth.may_be_false) = true;
  return truth;
}

Truth compare(Op op, Truth a, Truth b) {
  const Truth equal{(a.may_be_true && b.may_be_true) || (a.may_be_false && b.may_be_false),
                    (a.may_be_true && b.may_be_false) || (a.may_be_false && b.may_be_true)};
  return op == Op::equal ? equal : Truth{equal.may_be_false, equal.may_be_true};
}

}  // namespace sirdar::expression
