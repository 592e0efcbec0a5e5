// What an expression can be while queries and keys run over ranges: interval arithmetic over the
// language's types, so that blocks of keys that a mask hides are never loaded, and blocks that it
// shows are not masked. A range may be too wide, never too narrow. Computed by a whole warp, which
// looks at tensors together.
#pragma once

#include "cuda/expression/language.cuh"
#include "ptx/warp.cuh"

namespace sirdar::language {

inline constexpr int kLeastInt = -2147483647 - 1, kMostInt = 2147483647;
// A tensor is looked at element by element where a box reads at most so many.
inline constexpr long long kMaxScanned = 65536;

struct IntRange {  // both ends included
  int lo, hi;
};
struct RealRange {  // both ends included; of numbers, beside which there may be NaN
  float lo, hi;
  bool may_be_nan;
};
struct Truth {
  bool may_be_true, may_be_false;
};

inline constexpr IntRange kAnyInt{kLeastInt, kMostInt};
inline constexpr RealRange kAnyReal{-kInfinity, kInfinity, true};
inline constexpr Truth kAnyTruth{true, true};

// A block of queries and one of keys; q_pos = q + seqlen_k - seqlen_q.
struct Box {
  int b, h;
  IntRange q, q_pos, k;
  int lane, num_lanes;  // this thread of how many that look at tensors together
};

SIRDAR_DEVICE IntRange exactly(int a) { return {a, a}; }
SIRDAR_DEVICE RealRange exactly(float a) {
  return a == a ? RealRange{a, a, false} : RealRange{kInfinity, -kInfinity, true};
}
SIRDAR_DEVICE Truth exactly(bool a) { return {a, !a}; }

// ---- ints: what leaves 32 bits has wrapped somewhere, and may be anything

SIRDAR_DEVICE IntRange wrapped(long long lo, long long hi) {
  if (lo < kLeastInt || hi > kMostInt) return kAnyInt;
  return {static_cast<int>(lo), static_cast<int>(hi)};
}
SIRDAR_DEVICE long long wide(int a) { return a; }
SIRDAR_DEVICE IntRange add(IntRange a, IntRange b) {
  return wrapped(wide(a.lo) + b.lo, wide(a.hi) + b.hi);
}
SIRDAR_DEVICE IntRange subtract(IntRange a, IntRange b) {
  return wrapped(wide(a.lo) - b.hi, wide(a.hi) - b.lo);
}
SIRDAR_DEVICE IntRange negate(IntRange a) { return wrapped(-wide(a.hi), -wide(a.lo)); }
SIRDAR_DEVICE IntRange smaller(IntRange a, IntRange b) {
  return {smaller(a.lo, b.lo), smaller(a.hi, b.hi)};
}
SIRDAR_DEVICE IntRange larger(IntRange a, IntRange b) {
  return {larger(a.lo, b.lo), larger(a.hi, b.hi)};
}
SIRDAR_DEVICE IntRange absolute(IntRange a) {
  if (a.lo == kLeastInt) return kAnyInt;
  return {larger(larger(a.lo, -a.hi), 0), larger(-a.lo, a.hi)};
}
SIRDAR_DEVICE IntRange multiply(IntRange a, IntRange b) {
  const long long p[4] = {wide(a.lo) * b.lo, wide(a.lo) * b.hi, wide(a.hi) * b.lo,
                          wide(a.hi) * b.hi};
  long long lo = p[0], hi = p[0];
  for (int i = 1; i < 4; ++i) {
    lo = p[i] < lo ? p[i] : lo;
    hi = p[i] > hi ? p[i] : hi;
  }
  return wrapped(lo, hi);
}
// By a divisor above 0, as masks have it, quotients grow with the dividend; otherwise any.
SIRDAR_DEVICE IntRange divide(IntRange a, IntRange b) {
  if (b.lo <= 0) return kAnyInt;
  return {smaller(a.lo / b.lo, a.lo / b.hi), larger(a.hi / b.lo, a.hi / b.hi)};
}
SIRDAR_DEVICE IntRange remainder(IntRange a, IntRange b) {
  if (b.lo <= 0) return kAnyInt;
  const bool is_one_period = b.lo == b.hi && a.lo / b.lo == a.hi / b.lo;
  if (is_one_period) return {a.lo % b.lo, a.hi % b.lo};
  return {a.lo < 0 ? larger(a.lo, 1 - b.hi) : 0, a.hi > 0 ? smaller(a.hi, b.hi - 1) : 0};
}

// ---- fp32: rounding to nearest keeps order, so sums of ends bound sums. The rest may be anything.

SIRDAR_DEVICE RealRange checked(float lo, float hi, bool may_be_nan) {
  return lo <= hi ? RealRange{lo, hi, may_be_nan} : kAnyReal;
}
SIRDAR_DEVICE RealRange to_real(IntRange a) { return {to_real(a.lo), to_real(a.hi), false}; }
SIRDAR_DEVICE bool is_bounded(RealRange a) {
  return a.lo > -kInfinity && a.hi < kInfinity && a.lo <= a.hi;
}
SIRDAR_DEVICE RealRange add(RealRange a, RealRange b) {
  if (!is_bounded(a) || !is_bounded(b)) return kAnyReal;
  return checked(a.lo + b.lo, a.hi + b.hi, a.may_be_nan || b.may_be_nan);
}
SIRDAR_DEVICE RealRange negate(RealRange a) { return {-a.hi, -a.lo, a.may_be_nan}; }
SIRDAR_DEVICE RealRange subtract(RealRange a, RealRange b) { return add(a, negate(b)); }
SIRDAR_DEVICE RealRange any_real() { return kAnyReal; }

// ---- bools

SIRDAR_DEVICE Truth opposite(Truth a) { return {a.may_be_false, a.may_be_true}; }
SIRDAR_DEVICE Truth both(Truth a, Truth b) {
  return {a.may_be_true && b.may_be_true, a.may_be_false || b.may_be_false};
}
SIRDAR_DEVICE Truth either(Truth a, Truth b) {
  return {a.may_be_true || b.may_be_true, a.may_be_false && b.may_be_false};
}
SIRDAR_DEVICE Truth less(IntRange a, IntRange b) { return {a.lo < b.hi, a.hi >= b.lo}; }
SIRDAR_DEVICE Truth less_equal(IntRange a, IntRange b) { return {a.lo <= b.hi, a.hi > b.lo}; }
SIRDAR_DEVICE Truth equal(IntRange a, IntRange b) {
  return {a.lo <= b.hi && b.lo <= a.hi, a.lo != a.hi || b.lo != b.hi || a.lo != b.lo};
}
// Comparisons with NaN are false.
SIRDAR_DEVICE bool has_nan(RealRange a, RealRange b) { return a.may_be_nan || b.may_be_nan; }
SIRDAR_DEVICE Truth less(RealRange a, RealRange b) {
  return {a.lo < b.hi, !(a.hi < b.lo) || has_nan(a, b)};
}
SIRDAR_DEVICE Truth less_equal(RealRange a, RealRange b) {
  return {a.lo <= b.hi, !(a.hi <= b.lo) || has_nan(a, b)};
}
SIRDAR_DEVICE Truth equal(RealRange a, RealRange b) {
  const bool is_one = a.lo == a.hi && b.lo == b.hi && a.lo == b.lo && !has_nan(a, b);
  return {a.lo <= b.hi && b.lo <= a.hi, !is_one};
}
SIRDAR_DEVICE Truth equal(Truth a, Truth b) {
  return {(a.may_be_true && b.may_be_true) || (a.may_be_false && b.may_be_false),
          (a.may_be_true && b.may_be_false) || (a.may_be_false && b.may_be_true)};
}

// ---- either of two

SIRDAR_DEVICE IntRange hull(IntRange a, IntRange b) {
  return {smaller(a.lo, b.lo), larger(a.hi, b.hi)};
}
SIRDAR_DEVICE RealRange hull(RealRange a, RealRange b) {
  return {a.lo < b.lo ? a.lo : b.lo, a.hi > b.hi ? a.hi : b.hi, has_nan(a, b)};
}
SIRDAR_DEVICE Truth hull(Truth a, Truth b) {
  return {a.may_be_true || b.may_be_true, a.may_be_false || b.may_be_false};
}
template <class T>
SIRDAR_DEVICE T choose(Truth condition, T a, T b) {
  if (!condition.may_be_false) return a;
  return condition.may_be_true ? hull(a, b) : b;
}

// ---- tensors

SIRDAR_DEVICE int from_lane(int a, int distance) {
  return static_cast<int>(ptx::shfl_xor(bits(a), distance));
}
SIRDAR_DEVICE IntRange from_lane(IntRange a, int distance) {
  return {from_lane(a.lo, distance), from_lane(a.hi, distance)};
}
SIRDAR_DEVICE RealRange from_lane(RealRange a, int distance) {
  return {ptx::shfl_xor(a.lo, distance), ptx::shfl_xor(a.hi, distance),
          from_lane(a.may_be_nan, distance) != 0};
}
SIRDAR_DEVICE Truth from_lane(Truth a, int distance) {
  const int seen = from_lane(2 * a.may_be_true + a.may_be_false, distance);
  return {(seen & 2) != 0, (seen & 1) != 0};
}

// The range of no values, which hull() leaves behind, and that of all.
SIRDAR_DEVICE IntRange nothing(IntRange) { return {kMostInt, kLeastInt}; }
SIRDAR_DEVICE RealRange nothing(RealRange) { return {kInfinity, -kInfinity, false}; }
SIRDAR_DEVICE Truth nothing(Truth) { return {false, false}; }
SIRDAR_DEVICE IntRange anything(IntRange) { return kAnyInt; }
SIRDAR_DEVICE RealRange anything(RealRange) { return kAnyReal; }
SIRDAR_DEVICE Truth anything(Truth) { return kAnyTruth; }

// The range of what is read while the indices run over theirs, the last axis fastest and shared out
// among the lanes.
template <class T, class... Ranges>
SIRDAR_DEVICE auto read_bounds(const TensorOperand& tensor, const Box& box, Ranges... indices) {
  using Element = ElementOf<T>;
  using Range = decltype(exactly(Element::value(typename Element::Stored{})));
  constexpr int kRank = static_cast<int>(sizeof...(indices));
  const IntRange ranges[kRank] = {indices...};
  int begin[kRank], size[kRank];
  long long outer = 1;
  for (int axis = 0; axis < kRank; ++axis) {
    begin[axis] = moved(ranges[axis].lo, tensor.shape[axis]);
    size[axis] = moved(ranges[axis].hi, tensor.shape[axis]) - begin[axis] + 1;
    if (axis < kRank - 1 && outer <= kMaxScanned) outer *= size[axis];
  }
  const int inner = size[kRank - 1];
  if (outer * inner > kMaxScanned) return anything(Range{});
  if (tensor.data == nullptr) return exactly(Element::value(typename Element::Stored{}));
  Range seen = nothing(Range{});
  SIRDAR_NO_UNROLL
  for (int i = 0; i < static_cast<int>(outer); ++i) {
    const auto* row = static_cast<const typename Element::Stored*>(tensor.data) +
                      begin[kRank - 1] * tensor.stride[kRank - 1];
    int rest = i;
    for (int axis = kRank - 2; axis > 0; --axis) {
      row += (begin[axis] + rest % size[axis]) * tensor.stride[axis];
      rest /= size[axis];
    }
    if (kRank > 1) row += (begin[0] + rest) * tensor.stride[0];
    // Four at a time, the last ones perhaps twice: reads that do not wait for each other, and few
    // instructions.
    SIRDAR_NO_UNROLL
    for (int j = box.lane; j < inner; j += 4 * box.num_lanes) {
      typename Element::Stored read[4];
      SIRDAR_UNROLL
      for (int four = 0; four < 4; ++four) {
        const int at = ptx::min_of(j + four * box.num_lanes, inner - 1);
        read[four] = ptx::load_constant(row + at * tensor.stride[kRank - 1]);
      }
      SIRDAR_UNROLL
      for (const auto& value : read) seen = hull(seen, exactly(Element::value(value)));
    }
  }
  for (int distance = 1; distance < box.num_lanes; distance *= 2) {
    seen = hull(seen, from_lane(seen, distance));
  }
  return seen;
}

}  // namespace sirdar::language
