// The counted machine counts what was done and refuses what does not fit.
#include <sirdar/status.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "reference/ladder/blocks.h"
#include "reference/ladder/machine.h"

namespace sirdar::ladder {
namespace {

TEST(LadderMachine, CountsBytesThatMove) {
  Machine machine(64);
  const float values[] = {1, 2, 3, 4, 5};
  const Slow from = machine.input(values);
  Slow to = machine.output(4);
  Fast tile = machine.fast(3);
  machine.load(tile, from, 1, 3);
  machine.store(to, 0, tile, 2);
  machine.write(to, 3, machine.read(from, 4));
  EXPECT_EQ(machine.counts().read_bytes, 16);
  EXPECT_EQ(machine.counts().written_bytes, 12);
  EXPECT_EQ(from.elements_read(), 4);
  EXPECT_EQ(to.elements_written(), 3);
  EXPECT_EQ(to.values()[0], 2);
  EXPECT_EQ(to.values()[1], 3);
  EXPECT_TRUE(std::isnan(to.values()[2]));  // never written
  EXPECT_EQ(to.values()[3], 5);
}

TEST(LadderMachine, CountsHalfAsManyBytesInHalfPrecision) {
  Machine machine(0, Precision::fp16);
  const float value[] = {1.0009765625F + 0.0001F};  // between two fp16 values
  const Slow from = machine.input(value);
  EXPECT_EQ(machine.read(from, 0), 1.0009765625F);
  EXPECT_EQ(machine.counts().read_bytes, 2);
}

TEST(LadderMachine, CountsEveryKindOfArithmetic) {
  Machine machine(64);
  float a[] = {1, 2}, b[] = {3, 4};
  EXPECT_EQ(machine.dot(a, b, 2), 11);
  machine.add_scaled(a, 2, b, 2);
  EXPECT_EQ(a[1], 10);
  EXPECT_EQ(machine.counts().matmul_flops, 8);
  EXPECT_EQ(machine.max(machine.add(1, 2), machine.sub(9, 1)), 8);
  EXPECT_EQ(machine.div(machine.mul(3, 4), 6), 2);
  EXPECT_EQ(machine.counts().other_flops, 5);
  EXPECT_EQ(machine.exp(0) + machine.log(1), 1);
  EXPECT_EQ(machine.counts().exps, 2);
}

TEST(LadderMachine, RefusesMoreFastMemoryThanItHas) {
  Machine machine(40);
  Fast first = machine.fast(6);
  EXPECT_THROW(machine.fast(5), Error);
  { Fast second = machine.fast(4); }
  Fast again = machine.fast(4);  // given back above
  EXPECT_EQ(machine.counts().peak_fast_bytes, 40);
}

TEST(LadderMachine, KeepsThePeakOfExtraMemoryOnly) {
  Machine machine(0);
  const Slow output = machine.output(100);
  {
    Slow first = machine.scratch(10);
    Slow moved = std::move(first);
    Slow second = machine.scratch(5);
  }
  Slow third = machine.scratch(12);
  EXPECT_EQ(machine.counts().peak_extra_bytes, 15 * 4);
}

TEST(LadderMachine, NeverReachesOutsideAnArray) {
  Machine machine(64);
  Slow slow = machine.output(4);
  Fast fast = machine.fast(4);
  EXPECT_THROW(machine.load(fast, slow, 1, 4), Error);
  EXPECT_THROW(machine.load(fast, slow, -1, 2), Error);
  EXPECT_THROW(machine.store(slow, 3, fast, 2), Error);
  EXPECT_THROW(machine.read(slow, 4), Error);
  EXPECT_THROW(machine.write(slow, -1, 0), Error);
}

TEST(LadderBlocks, ArticleSizesFollowTheFormula) {
  // M = 1000, d = 10: ceil(1000 / 40) = 25 keys, min(25, 10) queries.
  EXPECT_EQ(article_blocks({512, 10, 1}, 1000), (Blocks{10, 25}));
  EXPECT_EQ(article_blocks({512, 10, 1}, 1001), (Blocks{10, 26}));
  EXPECT_EQ(article_blocks({512, 100, 1}, 1000), (Blocks{3, 3}));
  EXPECT_EQ(article_blocks({20, 10, 1}, 1000), (Blocks{10, 20}));
}

// The fitting sizes fit, have the article's form, and the next larger ones of that form do not fit.
void expect_largest(Tiling tiling, int64_t d, int64_t m) {
  const Head head{1 << 20, d, 1};
  const Blocks b = fitting_blocks(tiling, head, m);
  if (b.block_m == 0) {
    EXPECT_GT(footprint(tiling, {1, 1}, d), m);
    return;
  }
  EXPECT_LE(footprint(tiling, b, d), m);
  const bool swapped = tiling == Tiling::flash2;
  const int64_t longer = swapped ? b.block_m : b.block_n;
  EXPECT_EQ(swapped ? b.block_n : b.block_m, std::min(longer, d));
  if (longer == ceil_div(m, 4 * d)) return;  // the article's own size
  const int64_t next = longer + 1, shorter = std::min(next, d);
  EXPECT_GT(footprint(tiling, swapped ? Blocks{next, shorter} : Blocks{shorter, next}, d), m);
}

TEST(LadderBlocks, FittingSizesFitAndTheNextDoNot) {
  for (const int64_t m : {40, 100, 1000, 10000, 100000}) {
    for (const int64_t d : {1, 4, 10, 64}) {
      expect_largest(Tiling::flash1, d, m);
      expect_largest(Tiling::flash2, d, m);
      expect_largest(Tiling::recompute_backward, d, m);
      expect_largest(Tiling::flash2_backward, d, m);
    }
  }
}

}  // namespace
}  // namespace sirdar::ladder
