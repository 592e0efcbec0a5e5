// Facts about element types, derived from the rows of types.h.
#pragma once

#include <sirdar/types.h>

namespace sirdar {

struct DTypeRow {
  const char* name;
  int value, bits, exponent_bits, mantissa_bits;

  constexpr bool is_float() const { return exponent_bits > 0; }
  constexpr int bytes() const { return bits / 8; }
  // Distance from 1 to the next larger number; rounding is off by at most half of it, relatively.
  constexpr double epsilon() const { return power_of_two(-mantissa_bits); }
  constexpr double min_normal() const { return power_of_two(2 - (1 << (exponent_bits - 1))); }
  // The spacing of the numbers next to zero.
  constexpr double min_subnormal() const { return min_normal() * epsilon(); }

  static constexpr double power_of_two(int exponent) {
    double result = 1;
    for (; exponent > 0; --exponent) result *= 2;
    for (; exponent < 0; ++exponent) result /= 2;
    return result;
  }
};

inline constexpr DTypeRow kDTypes[] = {
#define SIRDAR_ROW(name, value, bits, exponent, mantissa) {#name, value, bits, exponent, mantissa},
    SIRDAR_DTYPES(SIRDAR_ROW)
#undef SIRDAR_ROW
};

// E is DType on the host; its values are those of the table and run from 0 without a gap.
template <class E>
constexpr const DTypeRow& row_of(E dtype) {
  return kDTypes[static_cast<int>(dtype)];
}

}  // namespace sirdar
