// S6: two scans forward and a backward pass from row statistics: right, and in O(N) extra memory.
#include <gtest/gtest.h>

#include "ladder_fixture.h"
#include "reference/ladder/blocks.h"
#include "reference/ladder/formulas.h"

namespace sirdar::ladder {
namespace {

constexpr Blocks kBlocks[] = {{1, 1}, {2, 3}, {8, 4}, {16, 16}, {100, 5}};
constexpr int64_t kPlenty = 1 << 24;  // bytes

TEST(LadderRecompute, ForwardAndBackwardMatchFloat64) {
  for (const auto [n, d] : kSizes) {
    for (const Blocks& blocks : kBlocks) {
      const RandomHead random(n, d);
      Machine machine(kPlenty);
      Tensors t = random.tensors(machine);
      const RowStatistics saved = recompute_forward(machine, random.head, blocks, t);
      recompute_backward(machine, random.head, blocks, saved, t);
      const MatrixAttention exact = random.exact();
      EXPECT_LT(distance(t.out.values(), exact.out), kTolerance) << n << " " << d;
      EXPECT_LT(distance(t.dq.values(), exact.dq), kTolerance) << n << " " << d;
      EXPECT_LT(distance(t.dk.values(), exact.dk), kTolerance) << n << " " << d;
      EXPECT_LT(distance(t.dv.values(), exact.dv), kTolerance) << n << " " << d;
    }
  }
}

TEST(LadderRecompute, CountsOfASmallHeadByHand) {
  // N = 4, d = 2, tiles of 2 x 2.
  const RandomHead random(4, 2);
  Machine machine(kPlenty);
  Tensors t = random.tensors(machine);
  const RowStatistics saved = recompute_forward(machine, random.head, {2, 2}, t);
  const Counts forward = machine.counts();
  // First scan: Q (8), K for each of two blocks (16). Second: Q (8), statistics (8), K and V (32).
  EXPECT_EQ(forward.read_bytes, 4 * (8 + 16 + 8 + 8 + 32));
  EXPECT_EQ(forward.written_bytes, 4 * (8 + 8));  // statistics, O
  EXPECT_EQ(forward.matmul_flops, 3 * 2 * 16 * 2);
  recompute_backward(machine, random.head, {2, 2}, saved, t);
  const Counts backward = machine.counts() - forward;
  // K and V (16); at each of four steps Q, O, dO, dQ (16) and statistics (4).
  EXPECT_EQ(backward.read_bytes, 4 * (16 + 4 * 20));
  EXPECT_EQ(backward.written_bytes, 4 * (8 + 4 * 4 + 16));  // dQ set, dQ at each step, dK and dV
  EXPECT_EQ(backward.matmul_flops, 5 * 2 * 16 * 2);
}

TEST(LadderRecompute, ExtraMemoryIsTwoNumbersARow) {
  for (const int64_t n : {8, 64, 200}) {
    const RandomHead random(n, 4);
    Machine machine(kPlenty);
    Tensors t = random.tensors(machine);
    const RowStatistics saved = recompute_forward(machine, random.head, {8, 8}, t);
    recompute_backward(machine, random.head, {8, 8}, saved, t);
    EXPECT_EQ(machine.counts().peak_extra_bytes, 2 * n * 4);
  }
}

TEST(LadderRecompute, FormulasHoldForUnevenTiles) {
  for (const auto [n, d] : kSizes) {
    for (const Blocks& blocks : kBlocks) {
      const RandomHead random(n, d);
      Machine machine(kPlenty);
      Tensors t = random.tensors(machine);
      const RowStatistics saved = recompute_forward(machine, random.head, blocks, t);
      const Counts forward = machine.counts();
      EXPECT_EQ(forward.peak_fast_bytes, 4 * footprint(Tiling::flash2, blocks, d));
      recompute_backward(machine, random.head, blocks, saved, t);
      const Counts backward = machine.counts() - forward;
      EXPECT_EQ(backward.peak_fast_bytes, 4 * footprint(Tiling::recompute_backward, blocks, d));
      for (const auto& [counts, p] :
           {std::pair(forward, predict_recompute_forward(random.head, blocks)),
            std::pair(backward, predict_recompute_backward(random.head, blocks))}) {
        EXPECT_EQ(counts.matmul_flops, p.matmul_flops.value);
        EXPECT_EQ(counts.other_flops, p.other_flops.value);
        EXPECT_EQ(counts.exps, p.exps.value);
        EXPECT_EQ(counts.read_bytes, 4 * p.read.value);
        EXPECT_EQ(counts.written_bytes, 4 * p.written.value);
      }
    }
  }
}

}  // namespace
}  // namespace sirdar::ladder
