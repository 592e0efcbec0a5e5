// S8, S9, S11: FlashAttention-2 forward, its causal skipping and its backward pass.
#include <gtest/gtest.h>

#include "ladder_fixture.h"
#include "reference/ladder/blocks.h"
#include "reference/ladder/formulas.h"

namespace sirdar::ladder {
namespace {

constexpr Blocks kBlocks[] = {{1, 1}, {2, 3}, {8, 4}, {16, 16}, {100, 5}};
constexpr int64_t kPlenty = 1 << 24;  // bytes

Counts forward_counts(const RandomHead& random, const Blocks& blocks, bool is_causal) {
  Machine machine(kPlenty);
  Tensors t = random.tensors(machine);
  flash2_forward(machine, random.head, blocks, is_causal, t);
  return machine.counts();
}

TEST(LadderFlash2, ForwardMatchesFloat64WithItsLogSumExp) {
  for (const auto [n, d] : kSizes) {
    for (const Blocks& blocks : kBlocks) {
      for (const bool is_causal : {false, true}) {
        const RandomHead random(n, d);
        Machine machine(kPlenty);
        Tensors t = random.tensors(machine);
        const Slow lse = flash2_forward(machine, random.head, blocks, is_causal, t);
        const MatrixAttention exact =
            random.exact([&](int64_t i, int64_t j) { return !is_causal || j <= i; });
        EXPECT_LT(distance(t.out.values(), exact.out), kTolerance) << n << " " << d;
        EXPECT_LT(distance(lse.values(), exact.lse), kTolerance) << n << " " << d;
      }
    }
  }
}

TEST(LadderFlash2, BackwardMatchesFloat64) {
  for (const auto [n, d] : kSizes) {
    for (const Blocks& blocks : kBlocks) {
      const RandomHead random(n, d);
      Machine machine(kPlenty);
      Tensors t = random.tensors(machine);
      const Slow lse = flash2_forward(machine, random.head, blocks, false, t);
      flash2_backward(machine, random.head, blocks, lse, t);
      const MatrixAttention exact = random.exact();
      EXPECT_LT(distance(t.dq.values(), exact.dq), kTolerance) << n << " " << d;
      EXPECT_LT(distance(t.dk.values(), exact.dk), kTolerance) << n << " " << d;
      EXPECT_LT(distance(t.dv.values(), exact.dv), kTolerance) << n << " " << d;
      EXPECT_EQ(machine.counts().peak_extra_bytes, 2 * n * 4);  // lse and delta
    }
  }
}

TEST(LadderFlash2, CountsOfASmallHeadByHand) {
  // N = 4, d = 2, tiles of 2 x 2.
  const RandomHead random(4, 2);
  Machine machine(kPlenty);
  Tensors t = random.tensors(machine);
  const Slow lse = flash2_forward(machine, random.head, {2, 2}, false, t);
  const Counts forward = machine.counts();
  EXPECT_EQ(forward.read_bytes, 4 * (8 + 2 * 16));  // Q once, K and V for both query blocks
  EXPECT_EQ(forward.written_bytes, 4 * (8 + 4));    // O and lse, once
  EXPECT_EQ(t.out.elements_written(), 8);
  EXPECT_EQ(forward.exps, 16 + 8 + 4);  // scores, one factor a row and tile, one logarithm a row
  EXPECT_EQ(forward.peak_extra_bytes, 4 * 4);
  flash2_backward(machine, random.head, {2, 2}, lse, t);
  const Counts backward = machine.counts() - forward;
  // delta: dO and O (16); K and V (16); at each of four steps Q, dO, dQ (12), lse and delta (4).
  EXPECT_EQ(backward.read_bytes, 4 * (16 + 16 + 4 * 16));
  EXPECT_EQ(backward.written_bytes, 4 * (4 + 8 + 4 * 4 + 16));  // delta, dQ set, dQ, dK and dV
  EXPECT_EQ(backward.matmul_flops, 5 * 2 * 16 * 2);
}

TEST(LadderFlash2, NeedsFewerOtherFlopsThanFlash1) {
  for (const auto [n, d] : kSizes) {
    for (const Blocks& blocks : kBlocks) {
      if (n == 1) continue;  // one tile, one row: nothing to save
      const RandomHead random(n, d);
      Machine machine(kPlenty);
      Tensors t = random.tensors(machine);
      flash1_forward(machine, random.head, blocks, t);
      const Counts flash2 = forward_counts(random, blocks, false);
      EXPECT_LT(flash2.other_flops, machine.counts().other_flops) << n << " " << d;
      EXPECT_EQ(flash2.matmul_flops, machine.counts().matmul_flops);
    }
  }
}

TEST(LadderFlash2, TrafficFallsAsFastMemoryGrows) {
  const int64_t n = 512, d = 8;
  const RandomHead random(n, d);
  double previous = 0;
  for (const int64_t m : {128, 256, 512, 1024, 2048}) {
    const Counts counts =
        forward_counts(random, fitting_blocks(Tiling::flash2, random.head, m), false);
    EXPECT_LE(counts.peak_fast_bytes, m * 4);
    const auto moved = static_cast<double>(counts.read_bytes + counts.written_bytes) / 4;
    const double bound = static_cast<double>(n * n * d * d) / static_cast<double>(m);
    EXPECT_GE(moved / bound, 4) << m;
    EXPECT_LE(moved / bound, 20) << m;
    if (previous > 0) {
      EXPECT_GT(previous / moved, 1.5) << m;
      EXPECT_LT(previous / moved, 2.6) << m;
    }
    previous = moved;
  }
}

TEST(LadderFlash2, CausalSkipsTowardsHalf) {
  for (const int64_t tiles : {1, 2, 4, 8, 16, 32}) {
    const RandomHead random(tiles * 8, 4);
    const Counts full = forward_counts(random, {8, 8}, false);
    const Counts causal = forward_counts(random, {8, 8}, true);
    // Of tiles^2 square tiles, tiles (tiles + 1) / 2 lie on or below the diagonal.
    EXPECT_EQ(causal.tiles, tiles * (tiles + 1) / 2);
    EXPECT_EQ(causal.matmul_flops * 2 * tiles, full.matmul_flops * (tiles + 1));
    EXPECT_EQ(causal.masked_tiles, tiles);  // the diagonal alone
    EXPECT_EQ(full.masked_tiles, 0);
  }
}

TEST(LadderFlash2, MasksOnlyTilesThatTheDiagonalCrosses) {
  for (const auto [n, d] : kSizes) {
    for (const Blocks& b : kBlocks) {
      const RandomHead random(n, d);
      int64_t tiles = 0, crossed = 0;
      for (int64_t r = 0; r < n; r += b.block_m) {
        for (int64_t c = 0; c < n; c += b.block_n) {
          const int64_t last_row = std::min(r + b.block_m, n) - 1;
          const int64_t last_key = std::min(c + b.block_n, n) - 1;
          tiles += c <= last_row;
          crossed += c <= last_row && last_key > r;
        }
      }
      const Counts counts = forward_counts(random, b, true);
      EXPECT_EQ(counts.tiles, tiles);
      EXPECT_EQ(counts.masked_tiles, crossed);
      EXPECT_EQ(causal_masked_tiles(random.head, b), crossed);
    }
  }
}

TEST(LadderFlash2, FormulasHoldForUnevenTiles) {
  for (const auto [n, d] : kSizes) {
    for (const Blocks& blocks : kBlocks) {
      const RandomHead random(n, d);
      Machine machine(kPlenty);
      Tensors t = random.tensors(machine);
      const Slow lse = flash2_forward(machine, random.head, blocks, false, t);
      const Counts forward = machine.counts();
      EXPECT_EQ(forward.peak_fast_bytes, 4 * footprint(Tiling::flash2, blocks, d));
      flash2_backward(machine, random.head, blocks, lse, t);
      const Counts backward = machine.counts() - forward;
      EXPECT_EQ(backward.peak_fast_bytes, 4 * footprint(Tiling::flash2_backward, blocks, d));
      const Counts causal = forward_counts(random, blocks, true);
      for (const auto& [counts, p] :
           {std::pair(forward, predict_flash2(random.head, blocks)),
            std::pair(backward, predict_flash2_backward(random.head, blocks)),
            std::pair(causal, predict_flash2_causal(random.head, blocks))}) {
        EXPECT_EQ(counts.matmul_flops, p.matmul_flops.value);
        EXPECT_EQ(counts.other_flops, p.other_flops.value);
        EXPECT_EQ(counts.exps, p.exps.value);
        EXPECT_EQ(counts.read_bytes, 4 * p.read.value);
        EXPECT_EQ(counts.written_bytes, 4 * p.written.value);
        EXPECT_EQ(counts.peak_extra_bytes, 4 * p.extra.value);
      }
    }
  }
}

}  // namespace
}  // namespace sirdar::ladder
