// Division by multiplication, as the Hopper kernels find an item's place.
#include "cuda/sm90/divisor.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sirdar::sm90 {
namespace {

constexpr int kMost = 1 << 30;

// Where a quotient could be one off: at multiples of the divisor, and at the largest number.
void expect_right(int divisor) {
  const Divisor by = Divisor::of(divisor);
  for (const int near : {0, divisor, 2 * (divisor / 2), kMost / 3, kMost / 2, kMost}) {
    const int multiple = near / divisor * divisor;
    for (int n = std::max(0, multiple - 1); n <= std::min(kMost, multiple + 1); ++n)
      ASSERT_EQ(by.quotient(n), n / divisor) << n << " / " << divisor;
  }
}

TEST(Divisor, IsRightForSmallDivisors) {
  for (int divisor = 1; divisor <= 70000; ++divisor) expect_right(divisor);
}

TEST(Divisor, IsRightForLargeDivisors) {
  for (int power = 16; power <= 30; ++power) {
    for (int off = -2; off <= 2; ++off) {
      if (const int divisor = (1 << power) + off; divisor <= kMost) expect_right(divisor);
    }
  }
  for (int divisor = 99991; divisor < kMost / 2; divisor += divisor / 7) expect_right(divisor);
}

TEST(Divisor, TakesNothingAsOne) {
  EXPECT_EQ(Divisor::of(0).quotient(12), 12);
  EXPECT_EQ(Divisor::of(-3).quotient(kMost), kMost);
}

}  // namespace
}  // namespace sirdar::sm90
