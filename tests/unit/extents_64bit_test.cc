// Lengths and row offsets of dense, ragged, shortened and paged tensors, past 2^31 elements too.
#include <gtest/gtest.h>

#include "core/geometry.h"

namespace sirdar {
namespace {

TEST(Extents, Dense) {
  const Extents extents{10, {}, {}};
  EXPECT_EQ(extents.sequence(3).begin, 0);
  EXPECT_EQ(extents.sequence(3).length, 10);
}

TEST(Extents, RaggedShortenedAndStrided) {
  const int cu[] = {0, -1, 4, -1, 4, -1, 9, -1};  // stride 2: 0, 4, 4, 9
  const int used[] = {3, 0, 5};
  const Extents extents{5, {cu, 2}, {used, 1}};
  EXPECT_EQ(extents.sequence(0).length, 3);
  EXPECT_EQ(extents.sequence(0).stored, 4);
  EXPECT_EQ(extents.sequence(1).stored, 0);
  EXPECT_EQ(extents.sequence(2).begin, 4);
  EXPECT_EQ(extents.sequence(2).length, 5);
}

TEST(RowMap, OffsetsAre64Bit) {
  int dummy = 0;
  const TensorView dense = TensorView::contiguous(&dummy, DType::bf16, {70000, 300000, 24, 128});
  const RowMap map = row_map(dense, Layout::dense);
  EXPECT_EQ(map.offset(69999, {}, 299999, 23), ((69999LL * 300000 + 299999) * 24 + 23) * 128);
  const RowMap ragged =
      row_map(TensorView::strided(&dummy, DType::bf16, {3000000, 24, 128}, {3 * 24 * 128, 128, 1}),
              Layout::ragged);
  EXPECT_EQ(ragged.offset(5, {2000000, 10, 10}, 7, 1), 2000007LL * 3 * 24 * 128 + 128);
}

TEST(RowMap, PagesOfAnySize) {
  int table[] = {4, 0, 2, 1, 3, 40000000};  // [batch 2, max_pages 3]
  const TensorView page_table = TensorView::contiguous(table, DType::int32, {2, 3});
  int dummy = 0;
  const TensorView cache = TensorView::contiguous(&dummy, DType::bf16, {50000000, 3, 2, 64});
  const RowMap map = row_map(cache, Layout::paged, 3, page_table);
  const Sequence sequence{0, 9, 9};
  for (long long b = 0; b < 2; ++b) {
    for (long long row = 0; row < 9; ++row) {
      const long long page = table[b * 3 + row / 3];
      EXPECT_EQ(map.offset(b, sequence, row, 1), ((page * 3 + row % 3) * 2 + 1) * 64);
    }
  }
}

TEST(RowMap, StridesOfSizeOneAxesAreNotRead) {
  int dummy = 0;
  const TensorView view =
      TensorView::strided(&dummy, DType::fp32, {1, 5, 1, 8}, {1LL << 62, -8, 1LL << 62, 1});
  const RowMap map = row_map(view, Layout::dense);
  EXPECT_EQ(map.offset(0, {}, 4, 0), -32);
  const TensorView lse = TensorView::strided(&dummy, DType::fp32, {2, 3, 7}, {100, 30, 2});
  EXPECT_EQ(row_statistics_map(lse, Layout::dense).offset(1, {}, 4, 2), 100 + 60 + 8);
  const TensorView flat = TensorView::strided(&dummy, DType::fp32, {3, 70}, {80, 1});
  EXPECT_EQ(row_statistics_map(flat, Layout::ragged).offset(1, {40, 5, 5}, 4, 2), 160 + 44);
}

}  // namespace
}  // namespace sirdar
