// Structured masks against visibility written out pair by pair, and coverage, key_range and
// monotonicity against brute force over allows().
#include "shared/mask.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "core/geometry.h"

namespace sirdar {
namespace {

// docs/masks.md, one pair at a time.
bool sees(const Mask& mask, int64_t seqlen_q, int64_t seqlen_k, int64_t i, int64_t j) {
  const int64_t d = mask.alignment == Alignment::bottom_right ? seqlen_k - seqlen_q : 0;
  if (j < 0 || j >= seqlen_k) return false;
  if (mask.is_causal && j > i + d) return false;
  if (mask.window_left && *mask.window_left < i + d - j) return false;
  if (mask.window_right && *mask.window_right < j - (i + d)) return false;
  if (mask.chunk_size > 0) {
    const double c = static_cast<double>(mask.chunk_size);
    if (std::floor(static_cast<double>(j) / c) != std::floor(static_cast<double>(i + d) / c)) {
      return false;
    }
  }
  return true;
}

Mask random_mask(std::mt19937& random) {
  const auto size = [&] { return static_cast<int64_t>(random() % 9); };
  Mask mask;
  mask.is_causal = random() % 2 == 0;
  if (random() % 3 == 0) mask.window_left = size();
  if (random() % 3 == 0) mask.window_right = size();
  if (random() % 16 == 0) mask.window_left = std::numeric_limits<int64_t>::max();
  if (random() % 16 == 0) mask.window_right = std::numeric_limits<int64_t>::max();
  if (random() % 3 == 0) mask.chunk_size = 1 + size();
  if (random() % 16 == 0) mask.chunk_size = std::numeric_limits<int64_t>::max();
  if (random() % 2 == 0) mask.alignment = Alignment::top_left;
  return mask;
}

TEST(StructuredMask, AgreesWithTheDefinitionPairByPair) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 3000; ++trial) {
    const Mask mask = random_mask(random);
    const int64_t seqlen_q = random() % 12, seqlen_k = random() % 12;
    const StructuredMask built = structured_mask(mask, seqlen_q, seqlen_k);
    for (int64_t i = 0; i < seqlen_q; ++i) {
      for (int64_t j = 0; j < seqlen_k; ++j) {
        ASSERT_EQ(allows(built, i, j), sees(mask, seqlen_q, seqlen_k, i, j))
            << "i " << i << " j " << j << " seqlen_q " << seqlen_q << " seqlen_k " << seqlen_k;
      }
      const Range row = key_range(built, i);
      ASSERT_TRUE(row.empty() || (row.begin >= 0 && row.end <= seqlen_k));
    }
    for (int64_t j = 0; j < seqlen_k + 2; ++j) {
      const Range rows = query_range(built, j, seqlen_q);
      for (int64_t i = 0; i < seqlen_q; ++i)
        ASSERT_EQ(rows.begin <= i && i < rows.end, allows(built, i, j)) << "i " << i << " j " << j;
    }
  }
}

TEST(StructuredMask, BoundsNeverDecreaseAndTilesAgreeWithPairs) {
  std::mt19937 random(6);
  for (int trial = 0; trial < 3000; ++trial) {
    const Mask mask = random_mask(random);
    const int64_t seqlen_q = 1 + random() % 20, seqlen_k = random() % 20;
    const StructuredMask built = structured_mask(mask, seqlen_q, seqlen_k);
    for (int64_t i = 1; i < seqlen_q; ++i) {
      ASSERT_LE(built.lo(i - 1), built.lo(i));
      ASSERT_LE(built.hi(i - 1), built.hi(i));
    }
    Range q, k;
    q.begin = random() % seqlen_q, q.end = q.begin + random() % (seqlen_q - q.begin + 1);
    k.begin = random() % 20, k.end = k.begin + random() % 8;
    int64_t seen = 0, pairs = 0;
    const Range range = key_range(built, q);
    for (Position i = q.begin; i < q.end; ++i) {
      for (Position j = k.begin; j < k.end; ++j) {
        ++pairs;
        if (!allows(built, i, j)) continue;
        ++seen;
        ASSERT_TRUE(range.begin <= j && j < range.end);
      }
    }
    const Cover cover = coverage(built, q, k);
    if (cover == Cover::all) {
      ASSERT_TRUE(pairs > 0 && seen == pairs);
    }
    if (cover == Cover::none) {
      ASSERT_EQ(seen, 0);
    }
  }
}

// The pictures of docs/masks.md.
TEST(StructuredMask, ExamplesOfTheDocument) {
  const auto picture = [](const Mask& mask) {
    std::string text;
    for (Position i = 0; i < 3; ++i) {
      for (Position j = 0; j < 5; ++j)
        text += allows(structured_mask(mask, 3, 5), i, j) ? 'x' : '.';
      text += ' ';
    }
    return text;
  };
  EXPECT_EQ(picture(Mask::causal()), "xxx.. xxxx. xxxxx ");
  EXPECT_EQ(picture(Mask::causal(Alignment::top_left)), "x.... xx... xxx.. ");
  EXPECT_EQ(picture(Mask::window(1, 0)), ".xx.. ..xx. ...xx ");
  EXPECT_EQ(picture(Mask::chunk(2)), "..xx. ..xx. ....x ");
}

TEST(StructuredMask, IntersectionAndFloorDivision) {
  constexpr Both<Causal, Window> both{{2}, {2, 1, 5}};
  static_assert(allows(both, 0, 1) && allows(both, 0, 2) && !allows(both, 0, 3));
  static_assert(!allows(both, 0, 0));
  static_assert(floor_div(-1, 4) == -1 && floor_div(-4, 4) == -1 && floor_div(-5, 4) == -2);
  static_assert(floor_div(7, 4) == 1 && floor_div(0, 4) == 0);
}

}  // namespace
}  // namespace sirdar
