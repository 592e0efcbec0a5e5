// Philox4x32-10 against the known-answer vectors of its authors (Random123), and the dropout bits
// made from it: layout of the counter, threshold, rate, dependence on every coordinate.
#include "shared/philox.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sirdar {
namespace {

void expect_block(PhiloxBlock counter, PhiloxKey key, PhiloxBlock expected) {
  const PhiloxBlock actual = philox4x32_10(counter, key);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(actual.word[i], expected.word[i]) << i;
}

TEST(Philox, KnownAnswers) {
  expect_block({{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect_block({{~0u, ~0u, ~0u, ~0u}}, {~0u, ~0u},
               {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect_block({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, {0xa4093822, 0x299f31d0},
               {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(Dropout, CounterLayoutIsAsDocumented) {
  const unsigned long long seed = 0x123456789abcdef0ull, offset = 0xfedcba9876543210ull;
  const PhiloxBlock derived =
      philox4x32_10({{0x76543210u, 0xfedcba98u, 0x44524F50u, 0u}}, {0x9abcdef0u, 0x12345678u});
  const Dropout dropout = Dropout::of(0.5, seed, offset);
  for (long long j = 0; j < 64; ++j) {
    const PhiloxBlock block = philox4x32_10({{static_cast<unsigned>(j / 4), 5u, 3u, 2u}},
                                            {derived.word[0], derived.word[1]});
    EXPECT_EQ(dropout.keeps(2, 3, 5, j), block.word[j % 4] >= 0x80000000u);
  }
}

TEST(Dropout, Threshold) {
  EXPECT_EQ(dropout_threshold(0), 0u);
  EXPECT_EQ(dropout_threshold(0.5), 1ull << 31);
  EXPECT_EQ(dropout_threshold(1e-30), 1u);
  EXPECT_EQ(dropout_threshold(1 - std::ldexp(1.0, -24)), (1ull << 32) - 256);
  EXPECT_EQ(Dropout::of(0.75, 1, 2).keep_scale, 4.0);
}

TEST(Dropout, RateAndDependenceOnEveryCoordinate) {
  const Dropout base = Dropout::of(0.3, 7, 11);
  const Dropout other_seed = Dropout::of(0.3, 8, 11), other_offset = Dropout::of(0.3, 7, 12);
  const Dropout high_offset = Dropout::of(0.3, 7, 11 + (1ull << 32));
  int kept = 0, differ[7] = {};
  const int count = 100000;
  for (int n = 0; n < count; ++n) {
    const long long i = n / 300, j = n % 300;
    const bool keep = base.keeps(1, 2, i, j);
    kept += keep;
    differ[0] += keep != other_seed.keeps(1, 2, i, j);
    differ[1] += keep != other_offset.keeps(1, 2, i, j);
    differ[2] += keep != high_offset.keeps(1, 2, i, j);
    differ[3] += keep != base.keeps(2, 2, i, j);
    differ[4] += keep != base.keeps(1, 3, i, j);
    differ[5] += keep != base.keeps(1, 2, i + 1, j);
    differ[6] += keep != base.keeps(1, 2, i, j + 1);
  }
  // Binomial: five standard deviations are 5 sqrt(0.21 / n) = 0.0072, 5 sqrt(0.42 * 0.58 / n) =
  // 0.0078.
  EXPECT_NEAR(static_cast<double>(kept) / count, 0.7, 0.0072);
  for (int changed : differ) EXPECT_NEAR(static_cast<double>(changed) / count, 0.42, 0.0078);
}

}  // namespace
}  // namespace sirdar
