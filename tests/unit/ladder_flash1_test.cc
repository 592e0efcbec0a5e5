// S5 and S7: FlashAttention-1 and its block-sparse form equal float64 and cost what they should.
#include <sirdar/status.hpp>

#include <gtest/gtest.h>

#include <cmath>

#include "ladder_fixture.h"
#include "reference/ladder/blocks.h"
#include "reference/ladder/climb.h"
#include "reference/ladder/formulas.h"

namespace sirdar::ladder {
namespace {

constexpr Blocks kBlocks[] = {{1, 1}, {2, 3}, {4, 8}, {16, 16}, {5, 100}};
constexpr int64_t kPlenty = 1 << 24;  // bytes

TEST(LadderFlash1, MatchesFloat64ForEveryTileSize) {
  for (const auto [n, d] : kSizes) {
    for (const Blocks& blocks : kBlocks) {
      const RandomHead random(n, d);
      Machine machine(kPlenty);
      Tensors t = random.tensors(machine);
      flash1_forward(machine, random.head, blocks, t);
      EXPECT_LT(distance(t.out.values(), random.exact().out), kTolerance) << n << " " << d;
    }
  }
}

TEST(LadderFlash1, ScoresOfAnyLevelDoNotOverflow) {
  RandomHead random(33, 8);
  random.head.scale = 1;
  for (float& q : random.q) q *= 1000;
  Machine machine(kPlenty);
  Tensors t = random.tensors(machine);
  flash1_forward(machine, random.head, {4, 8}, t);
  for (const float x : t.out.values()) EXPECT_TRUE(std::isfinite(x));
}

TEST(LadderFlash1, CountsOfASmallHeadByHand) {
  // N = 4, d = 2, tiles of 2 x 2: two K/V tiles, two query blocks each.
  const RandomHead random(4, 2);
  Machine machine(kPlenty);
  Tensors t = random.tensors(machine);
  const RowStatistics statistics = flash1_forward(machine, random.head, {2, 2}, t);
  // K and V once (16); at each of 2 x 2 steps Q and O (4 + 4), row_max and row_sum (2 + 2).
  EXPECT_EQ(machine.counts().read_bytes, 4 * (16 + 4 * 12));
  // O, row_max and row_sum: set once (16), then O (4) and statistics (4) at each of four steps.
  EXPECT_EQ(machine.counts().written_bytes, 4 * (16 + 4 * 8));
  EXPECT_EQ(t.out.elements_written(), 3 * 8);  // every element: set, and rewritten at both tiles
  EXPECT_EQ(statistics.row_max.elements_written(), 3 * 4);
  EXPECT_EQ(machine.counts().matmul_flops, 4 * 16 * 2);
  EXPECT_EQ(machine.counts().exps, 16 + 2 * 8);  // scores, and two factors a row and tile
  EXPECT_EQ(machine.counts().peak_extra_bytes, 4 * 8);
}

TEST(LadderFlash1, TheArticlesOwnSizesOverrunTheirMemory) {
  // ceil(M / 4d) fills M with the tiles of K, V, Q and O while block_n <= head_dim.
  const RandomHead random(64, 16);
  const int64_t m = 16 * 16 * 2;
  const Blocks article = article_blocks(random.head, m);
  EXPECT_EQ(article, (Blocks{8, 8}));
  Machine machine(m * 4);
  Tensors t = random.tensors(machine);
  EXPECT_THROW(flash1_forward(machine, random.head, article, t), Error);
  const Blocks fitting = fitting_blocks(Tiling::flash1, random.head, m);
  Machine second(m * 4);
  Tensors u = random.tensors(second);
  flash1_forward(second, random.head, fitting, u);
  EXPECT_LT(distance(u.out.values(), random.exact().out), kTolerance);
  EXPECT_EQ(second.counts().peak_fast_bytes, 4 * footprint(Tiling::flash1, fitting, 16));
}

TEST(LadderFlash1, TrafficFallsAsFastMemoryGrows) {
  const int64_t n = 512, d = 8;
  const RandomHead random(n, d);
  double previous = 0;
  for (const int64_t m : {128, 256, 512, 1024, 2048}) {
    Machine machine(m * 4);
    Tensors t = random.tensors(machine);
    flash1_forward(machine, random.head, fitting_blocks(Tiling::flash1, random.head, m), t);
    const auto moved =
        static_cast<double>(machine.counts().read_bytes + machine.counts().written_bytes) / 4;
    const double bound = static_cast<double>(n * n * d * d) / static_cast<double>(m);
    EXPECT_GE(moved / bound, 6) << m;
    EXPECT_LE(moved / bound, 30) << m;
    if (previous > 0) {  // twice the memory, half the traffic
      EXPECT_GT(previous / moved, 1.5) << m;
      EXPECT_LT(previous / moved, 2.6) << m;
    }
    previous = moved;
  }
}

TEST(LadderFlash1, FormulasHoldForUnevenTiles) {
  for (const auto [n, d] : kSizes) {
    for (const Blocks& blocks : kBlocks) {
      const RandomHead random(n, d);
      Machine machine(kPlenty);
      Tensors t = random.tensors(machine);
      flash1_forward(machine, random.head, blocks, t);
      const Prediction p = predict_flash1(random.head, blocks);
      EXPECT_EQ(machine.counts().matmul_flops, p.matmul_flops.value);
      EXPECT_EQ(machine.counts().other_flops, p.other_flops.value);
      EXPECT_EQ(machine.counts().exps, p.exps.value);
      EXPECT_EQ(machine.counts().read_bytes, 4 * p.read.value);
      EXPECT_EQ(machine.counts().written_bytes, 4 * p.written.value);
      EXPECT_EQ(machine.counts().peak_extra_bytes, 4 * p.extra.value);
      EXPECT_EQ(machine.counts().peak_fast_bytes, 4 * footprint(Tiling::flash1, blocks, d));
    }
  }
}

TilePattern pattern_of(const Head& head, const Blocks& blocks, auto&& visible) {
  TilePattern pattern{
      ceil_div(head.seqlen, blocks.block_m), ceil_div(head.seqlen, blocks.block_n), {}};
  for (int64_t i = 0; i < pattern.tiles_m; ++i) {
    for (int64_t j = 0; j < pattern.tiles_n; ++j) pattern.visible.push_back(visible(i, j));
  }
  return pattern;
}

TEST(LadderBlockSparse, MatchesFloat64UnderItsPattern) {
  const RandomHead random(65, 8);
  for (const Blocks& blocks : kBlocks) {
    const TilePattern pattern = example_pattern(random.head, blocks);
    Machine machine(kPlenty);
    Tensors t = random.tensors(machine);
    block_sparse_forward(machine, random.head, blocks, pattern, t);
    const MatrixAttention exact = random.exact(
        [&](int64_t i, int64_t j) { return pattern.at(i / blocks.block_m, j / blocks.block_n); });
    EXPECT_LT(distance(t.out.values(), exact.out), kTolerance);
  }
}

TEST(LadderBlockSparse, ARowThatSeesNothingIsZero) {
  const RandomHead random(8, 4);
  const Blocks blocks{2, 2};
  const TilePattern pattern =
      pattern_of(random.head, blocks, [](int64_t i, int64_t) { return i != 1; });
  Machine machine(kPlenty);
  Tensors t = random.tensors(machine);
  block_sparse_forward(machine, random.head, blocks, pattern, t);
  for (size_t x = 8; x < 16; ++x) EXPECT_EQ(t.out.values()[x], 0);
}

TEST(LadderBlockSparse, CostsNothingForWhatIsHidden) {
  const RandomHead random(64, 8);
  const Blocks blocks{8, 8};
  const auto run = [&](auto&& visible) {
    Machine machine(kPlenty);
    Tensors t = random.tensors(machine);
    block_sparse_forward(machine, random.head, blocks, pattern_of(random.head, blocks, visible), t);
    return machine.counts();
  };
  const Counts all = run([](int64_t, int64_t) { return true; });
  const Counts half = run([](int64_t i, int64_t j) { return (i + j) % 2 == 0; });
  const Counts quarter = run([](int64_t i, int64_t j) { return (i + j) % 4 == 0; });
  const Counts none = run([](int64_t, int64_t) { return false; });
  EXPECT_EQ(all.tiles, 64);
  EXPECT_EQ(half.tiles, 32);
  EXPECT_EQ(half.matmul_flops * 2, all.matmul_flops);
  EXPECT_EQ(quarter.matmul_flops * 4, all.matmul_flops);
  EXPECT_EQ(half.other_flops * 2, all.other_flops);
  EXPECT_EQ(half.exps * 2, all.exps);
  // Traffic: a fixed part (out and statistics set once, K and V) and one part a visible tile.
  const auto moved = [](const Counts& c) { return (c.read_bytes + c.written_bytes) / 4; };
  const int64_t set = 64 * (8 + 2), keys = 2 * 64 * 8, tile = 8 * (2 * 8 + 2) + 8 * (8 + 2);
  EXPECT_EQ(moved(none), set);
  EXPECT_EQ(moved(half), set + keys + 32 * tile);
  EXPECT_EQ(moved(all), set + keys + 64 * tile);
  EXPECT_EQ(none.matmul_flops + none.other_flops + none.exps, 0);
}

TEST(LadderBlockSparse, AFullPatternIsFlash1) {
  const RandomHead random(33, 5);
  const Blocks blocks{4, 8};
  Machine sparse(kPlenty), dense(kPlenty);
  Tensors a = random.tensors(sparse), b = random.tensors(dense);
  const auto all = [](int64_t, int64_t) { return true; };
  block_sparse_forward(sparse, random.head, blocks, pattern_of(random.head, blocks, all), a);
  flash1_forward(dense, random.head, blocks, b);
  EXPECT_EQ(sparse.counts(), dense.counts());
  EXPECT_EQ(a.out.values(), b.out.values());
}

}  // namespace
}  // namespace sirdar::ladder
