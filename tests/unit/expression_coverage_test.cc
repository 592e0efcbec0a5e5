// Coverage of the masks that people write: not only right but sharp, tile by tile.
#include <gtest/gtest.h>

#include "expression/expression.h"

namespace sirdar::expression {
namespace {

constexpr int64_t kSeqlen = 96, kTile = 8;

class ExpressionCoverage : public testing::Test {
 protected:
  ExpressionCoverage() {
    for (int64_t i = 0; i < kSeqlen; ++i) doc_.push_back(i < 20 ? 4 : i < 64 ? 7 : 9);
    views_ = {TensorView::contiguous(doc_.data(), DType::int32, {1, kSeqlen}),
              TensorView::contiguous(prefix_.data(), DType::int32, {1}),
              TensorView::contiguous(reach_.data(), DType::int32, {2}),
              TensorView::contiguous(blocks_.data(), DType::boolean, {3, 3})};
  }
  Program parse(std::string_view text) {
    return Program::parse(Kind::mask_mod, text, tensors_, names_).value();
  }
  Cover exact(const Program& program, const Box& box) {
    int64_t visible = 0;
    for (int64_t q = box.q.begin; q < box.q.end; ++q) {
      for (int64_t k = box.k.begin; k < box.k.end; ++k) {
        visible += program.allows(bindings(), {.h = box.h, .q = q, .k = k, .q_pos = q + box.shift});
      }
    }
    return visible == 0 ? Cover::none : visible == kTile * kTile ? Cover::all : Cover::part;
  }
  // Every tile's coverage is the exact one; both answers other than `part` occur where they can.
  void expect_sharp(std::string_view text, int64_t shift = 0) {
    SCOPED_TRACE(text);
    const Program program = parse(text);
    for (int64_t q = 0; q < kSeqlen; q += kTile) {
      for (int64_t k = 0; k < kSeqlen; k += kTile) {
        const Box box{.h = 1, .q = {q, q + kTile}, .k = {k, k + kTile}, .shift = shift};
        EXPECT_EQ(program.coverage(bindings(), box), exact(program, box)) << q << ", " << k;
      }
    }
  }
  Bindings bindings() const { return {views_, scalars_}; }

  std::vector<int32_t> doc_, prefix_{21}, reach_{5, 11};
  std::vector<uint8_t> blocks_{1, 0, 1, 0, 1, 0, 0, 0, 1};
  std::vector<ExpressionTensor> tensors_{{"doc", DType::int32, 2},
                                         {"prefix", DType::int32, 1},
                                         {"reach", DType::int32, 1},
                                         {"blocks", DType::boolean, 2}};
  std::vector<std::string> names_{"width"};
  std::vector<double> scalars_{16};
  std::vector<TensorView> views_;
};

TEST_F(ExpressionCoverage, SharpForCommonMasks) {
  for (int64_t shift : {0, -7, 40}) {
    expect_sharp("q_pos >= k", shift);
    expect_sharp("k <= q_pos && q_pos - k <= 13", shift);
    expect_sharp("q_pos - k <= 13 && k - q_pos <= 4", shift);
    expect_sharp("abs(q_pos - k) < width", shift);
    expect_sharp("k < 8 || k <= q_pos && q_pos - k < 20", shift);
    expect_sharp("q_pos >= k && q_pos - k < reach[h]", shift);
  }
  expect_sharp("doc[b, q] == doc[b, k]");
  expect_sharp("doc[b, q] == doc[b, k] && q >= k");
  expect_sharp("k < prefix[b]");
  expect_sharp("q / 32 == k / 32");
  expect_sharp("q / 24 >= k / 24");
  expect_sharp("(q - k) % 2 == 0");
  expect_sharp("k % 16 < 8");
  expect_sharp("blocks[q / 32, k / 32]");
  expect_sharp("true");
}

TEST_F(ExpressionCoverage, AnEmptyTileShowsNothing) {
  EXPECT_EQ(parse("true").coverage(bindings(), {.q = {0, 0}, .k = {0, 8}}), Cover::none);
  EXPECT_EQ(parse("true").coverage(bindings(), {.q = {0, 8}, .k = {8, 8}}), Cover::none);
  EXPECT_EQ(parse("true").coverage(bindings(), {.q = {0, 8}, .k = {0, 8}}), Cover::all);
}

TEST_F(ExpressionCoverage, WrappedPositionsAreInDoubt) {
  const Box box{.q = {2147483640, 2147483650}, .k = {0, 1}};
  EXPECT_EQ(parse("q >= k").coverage(bindings(), box), Cover::part);
  EXPECT_EQ(parse("q + 1 > q").coverage(bindings(), {.q = {0, 2147483647}, .k = {0, 1}}),
            Cover::part);
}

// More elements than a tile is worth: no scan, no answer.
TEST_F(ExpressionCoverage, LongReadsAreInDoubt) {
  std::vector<uint8_t> keep(70000, 1);
  const std::vector<ExpressionTensor> tensors{{"keep", DType::boolean, 1}};
  const std::vector<TensorView> views{TensorView::contiguous(keep.data(), DType::boolean, {70000})};
  const Program program = Program::parse(Kind::mask_mod, "keep[k]", tensors, {}).value();
  EXPECT_EQ(program.coverage({views, {}}, {.q = {0, 1}, .k = {0, 65536}}), Cover::all);
  EXPECT_EQ(program.coverage({views, {}}, {.q = {0, 1}, .k = {0, 65537}}), Cover::part);
}

}  // namespace
}  // namespace sirdar::expression
