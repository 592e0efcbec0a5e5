// What a thread sees of a score tile, as words of which a bit is one of its columns.
#include <gtest/gtest.h>

#include <random>

#include "cuda/sm90/forward/modify.cuh"

namespace sirdar::sm90 {
namespace {

template <int kCount>
bool is_seen(const SeenScores<kCount>& seen, int i) {
  float scores[kCount] = {};
  seen.hide_others(scores);
  return scores[i] == 0;
}

template <int kCount>
void expect_columns(const SeenScores<kCount>& seen, const ColumnBounds& bounds) {
  for (int i = 0; i < kCount; ++i) {
    const int column = 8 * (i / 4) + i % 2;
    const bool is_lower = i % 4 >= 2;
    const int lo = is_lower ? bounds.lo_lower : bounds.lo_upper;
    const int hi = is_lower ? bounds.hi_lower : bounds.hi_upper;
    ASSERT_EQ(is_seen(seen, i), lo <= column && column < hi) << i << " of " << lo << ", " << hi;
  }
}

template <int kCount>
void expect_bounds() {
  constexpr int kFar = 1 << 30;
  for (const int lo : {-kFar, -1, 0, 1, 2, 7, 8, 9, 62, 63, 64, 119, 120, 121, 127, 128, 129, kFar})
    for (const int hi :
         {-kFar, -9, 0, 1, 2, 3, 8, 9, 10, 63, 64, 65, 120, 121, 122, 128, 193, kFar}) {
      const ColumnBounds bounds{lo, hi, lo + 8, hi - 5};
      expect_columns(SeenScores<kCount>::template within<true>(bounds), bounds);
      const ColumnBounds without_lo{-kFar, hi, -kFar, hi - 5};
      expect_columns(SeenScores<kCount>::template within<false>(bounds), without_lo);
    }
}

TEST(SeenScores, AreColumnsWithinBounds) {
  expect_bounds<32>();
  expect_bounds<64>();
  expect_bounds<128>();
}

template <int kKeys>
void expect_kept() {
  std::mt19937 random(3);
  SeenKeys<kKeys> keys;
  for (int lane = 0; lane < 32; ++lane) {
    for (uint32_t& word : keys.upper) word = static_cast<uint32_t>(random());
    for (uint32_t& word : keys.lower) word = static_cast<uint32_t>(random());
    const ColumnBounds all{0, kKeys, 0, kKeys};
    auto seen = SeenScores<kKeys / 2>::template within<false>(all);
    keys.keep_in(seen, lane);
    for (int i = 0; i < kKeys / 2; ++i) {
      const int column = 8 * (i / 4) + i % 2 + 2 * (lane % 4);
      const uint32_t word = (i % 4 >= 2 ? keys.lower : keys.upper)[column / 32];
      ASSERT_EQ(is_seen(seen, i), (word >> column % 32 & 1) != 0) << i << " of lane " << lane;
    }
  }
}

TEST(SeenScores, KeepsWhatWordsOfATileSay) {
  expect_kept<32>();
  expect_kept<64>();
  expect_kept<128>();
  expect_kept<256>();
}

}  // namespace
}  // namespace sirdar::sm90
