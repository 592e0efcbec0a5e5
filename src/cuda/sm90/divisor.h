// Division by a number that is known before a kernel begins.
#pragma once

namespace sirdar::sm90 {

// By a multiplication: a GPU has no division of integers, and a kernel whose first lines are
// several waits for their instructions to come from memory.
struct Divisor {
  unsigned multiplier = 1;
  int shift = 0;

  // Of less than 1 as of 1: what is empty is divided by nothing.
  static constexpr Divisor of(int divisor) {
    if (divisor < 1) return {};
    const auto d = static_cast<unsigned long long>(divisor);
    int shift = 0;
    while ((1ULL << shift) < d) ++shift;
    return {static_cast<unsigned>((((1ULL << shift) - d) << 32) / d + 1), shift};
  }

  // n / divisor for 0 <= n <= 2^30.
  constexpr int quotient(int n) const {
    const auto m = static_cast<unsigned>(n);
    const auto high =
        static_cast<unsigned>((static_cast<unsigned long long>(m) * multiplier) >> 32);
    return static_cast<int>((high + m) >> shift);
  }
};

}  // namespace sirdar::sm90
