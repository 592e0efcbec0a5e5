// Interval arithmetic over the language's types: what a node can be while its operands range over
// theirs. An interval may be too wide, never too narrow.
#pragma once

#include "expression/arithmetic.h"

#include <algorithm>
#include <limits>

namespace sirdar::expression {

struct IntRange {  // both ends included, inside int32
  int64_t lo = 0, hi = 0;
};
struct RealRange {  // both ends included, never NaN
  double lo = 0, hi = 0;
  bool may_be_nan = false;
};
struct Truth {
  bool may_be_true = false, may_be_false = false;
};

inline constexpr IntRange kAnyInt{std::numeric_limits<int32_t>::min(),
                                  std::numeric_limits<int32_t>::max()};
inline constexpr RealRange kAnyReal{-std::numeric_limits<double>::infinity(),
                                    std::numeric_limits<double>::infinity(), true};
inline constexpr Truth kAnyTruth{true, true};

// A range that leaves int32 has wrapped somewhere: anything is possible.
constexpr IntRange wrapped(int64_t lo, int64_t hi) {
  return lo < kAnyInt.lo || hi > kAnyInt.hi ? kAnyInt : IntRange{lo, hi};
}

constexpr IntRange hull(IntRange a, IntRange b) {
  return {std::min(a.lo, b.lo), std::max(a.hi, b.hi)};
}
constexpr RealRange hull(RealRange a, RealRange b) {
  return {std::min(a.lo, b.lo), std::max(a.hi, b.hi), a.may_be_nan || b.may_be_nan};
}
constexpr Truth hull(Truth a, Truth b) {
  return {a.may_be_true || b.may_be_true, a.may_be_false || b.may_be_false};
}

// ints
IntRange apply(Op op, IntRange a, IntRange b);
IntRange apply(Op op, IntRange a);

// reals
RealRange apply(Op op, RealRange a, RealRange b);
RealRange apply(Op op, RealRange a);

// bools
Truth compare(Op op, IntRange a, IntRange b);
Truth compare(Op op, RealRange a, RealRange b);
Truth compare(Op op, Truth a, Truth b);

}  // namespace sirdar::expression
