// Which strided views touch a byte twice, against a list of every byte.
#include "core/memory.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace sirdar {
namespace {

bool coincide(const TensorView& view) {
  std::set<int64_t> places;
  int64_t count = 0;
  for (int64_t a = 0; a < view.shape[0]; ++a)
    for (int64_t b = 0; b < view.shape[1]; ++b)
      for (int64_t c = 0; c < view.shape[2]; ++c, ++count)
        places.insert(a * view.stride[0] + b * view.stride[1] + c * view.stride[2]);
  return static_cast<int64_t>(places.size()) != count;
}

TensorView view_of(std::array<int64_t, 3> shape, std::array<int64_t, 3> stride) {
  TensorView view;
  view.rank = 3;
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  std::copy(stride.begin(), stride.end(), view.stride.begin());
  return view;
}

TEST(Memory, OverlapOfAViewWithItselfIsExact) {
  std::mt19937 engine(1);
  const auto below = [&](int bound) { return static_cast<int64_t>(engine()) % bound; };
  int overlapping = 0;
  for (int n = 0; n < 20000; ++n) {
    const TensorView view =
        view_of({below(5), below(5), 1 + below(4)}, {below(31) - 5, below(31) - 5, below(13) - 3});
    ASSERT_EQ(overlaps_itself(view), coincide(view))
        << view.shape[0] << ' ' << view.shape[1] << ' ' << view.shape[2] << ", " << view.stride[0]
        << ' ' << view.stride[1] << ' ' << view.stride[2];
    overlapping += coincide(view) ? 1 : 0;
  }
  EXPECT_GT(overlapping, 2000);
  EXPECT_LT(overlapping, 18000);
}

// Rows that interleave without touching: element (i, j) at 3 i + 2 j.
TEST(Memory, StridesNeedNotNest) {
  EXPECT_FALSE(overlaps_itself(view_of({1, 2, 3}, {0, 3, 2})));
  EXPECT_TRUE(overlaps_itself(view_of({1, 3, 4}, {0, 3, 2})));  // 3 * 2 = 2 * 3
}

TEST(Memory, LargeShapesAreDecidedAtOnce) {
  constexpr int64_t kLarge = int64_t{1} << 30;
  EXPECT_FALSE(overlaps_itself(view_of({kLarge, kLarge, 8}, {8, 8 * kLarge, 1})));
  EXPECT_TRUE(overlaps_itself(view_of({kLarge, kLarge, 8}, {8, 8 * kLarge - 8, 1})));
}

}  // namespace
}  // namespace sirdar
