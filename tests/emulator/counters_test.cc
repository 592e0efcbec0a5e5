// What the emulated machine counts while the forward runs, and what `explain` says of the problem:
// FLOPs of wgmma, bytes of TMA. Everything is exact but for half blocks.
#include <gtest/gtest.h>

#include "emulator/support/emulated_call.h"
#include "plan/cost.h"
#include "plan/tiles.h"

namespace sirdar::emulator_tests {
namespace {

// A forward whose tensors' rows are whole chunks of 64 columns, which is what TMA moves.
struct Counted {
  Problem problem;
  sm90::ForwardConfig config;
  Cost cost;
  emulator::Counters counters;

  explicit Counted(const std::string& text)
      : problem(Problem::parse(text).value()), cost(cost_of(problem)) {
    EmulatedCall call(text);
    config = call.kernels().config;
    const emulator::Report report = call.run(1);
    EXPECT_EQ(report.fault, "") << text;
    counters = report.counters;
    EXPECT_EQ(counters.mma_flops, 0u) << "no block was scored again";
  }
  // Heads or packs of them, which are whole here.
  int64_t heads() const { return problem.batch * problem.num_heads_q / config.num_packed_heads; }
  int64_t columns() const { return problem.head_dim + problem.value_dim(); }
  // Tiles of which something is seen, of one head.
  int64_t seen_tiles(int64_t block_m) const {
    const TileCounts tiles = count_tiles(problem, block_m, config.block_n).value();
    return tiles.part + tiles.all;
  }
  // By tiles of so many rows.
  double flops_of_tiles(int64_t rows) const {
    const int64_t tiles = seen_tiles(rows / config.num_packed_heads);
    return static_cast<double>(heads() * tiles * rows * config.block_n * 2 * columns());
  }
  double bytes_of_tiles() const {
    const int64_t blocks_m = (problem.seqlen_q + block_rows(config) - 1) / block_rows(config);
    const int64_t q = blocks_m * block_m(config) * problem.head_dim;
    const int64_t kv = seen_tiles(block_rows(config)) * config.block_n * columns();
    return static_cast<double>(2 * heads() * (q + kv));
  }
};

// One block of queries, whole tiles, a K/V head for each query head: everything moves once.
TEST(EmulatedCounters, WholeTilesCostWhatExplainSays) {
  const Counted one("fwd b2 sq256 sk512 h2 d64 bf16 lse");
  ASSERT_EQ(block_m(one.config), 256);
  EXPECT_EQ(static_cast<double>(one.counters.wgmma_flops), one.cost.flops);
  EXPECT_EQ(static_cast<double>(one.counters.bytes_loaded), one.cost.bytes_read);
  const double lse = 4.0 * 2 * 2 * 256;  // leaves by ordinary stores
  EXPECT_EQ(static_cast<double>(one.counters.bytes_stored) + lse, one.cost.bytes_written);
}

// Tiles that lengths or a mask cut are multiplied and loaded whole.
TEST(EmulatedCounters, CutTilesCostWhatTheTilesOfExplainSay) {
  for (const char* text : {"fwd sq300 sk333 h2 d64 bf16 lse", "fwd s512 h1 d64 bf16 causal lse",
                           "fwd s512 h1 d64 bf16 window:100,0 lse"}) {
    const Counted one(text);
    // Warpgroups pass over what their own 64 rows do not see.
    const int64_t rows = one.config.trim > 0 ? 64 : block_m(one.config);
    EXPECT_EQ(static_cast<double>(one.counters.wgmma_flops), one.flops_of_tiles(rows)) << text;
    EXPECT_EQ(static_cast<double>(one.counters.bytes_loaded), one.bytes_of_tiles()) << text;
    EXPECT_GT(static_cast<double>(one.counters.wgmma_flops), one.cost.flops) << text;
    EXPECT_GE(static_cast<double>(one.counters.bytes_loaded), one.cost.bytes_read) << text;
  }
}

// Warpgroups skip what none of their own 64 rows sees.
TEST(EmulatedCounters, SkippedBlocksSaveFlops) {
  const Counted one("fwd s256 h1 d128 bf16 causal lse");
  ASSERT_EQ(one.config.trim, 1);
  EXPECT_GT(static_cast<double>(one.counters.wgmma_flops), one.cost.flops);
  EXPECT_EQ(static_cast<double>(one.counters.wgmma_flops), one.flops_of_tiles(64));
  EXPECT_EQ(static_cast<double>(one.counters.bytes_loaded), one.bytes_of_tiles());
}

// Packed query heads share a load of K and V.
TEST(EmulatedCounters, PackedHeadsCostWhatExplainSays) {
  const Counted one("fwd b2 sq16 sk512 hq8 hkv2 d64 bf16 lse");
  ASSERT_EQ(one.config.num_packed_heads, 4);
  ASSERT_EQ(block_m(one.config), 64);
  EXPECT_EQ(static_cast<double>(one.counters.wgmma_flops), one.cost.flops);
  EXPECT_EQ(static_cast<double>(one.counters.bytes_loaded), one.cost.bytes_read);
  const double lse = 4.0 * 2 * 8 * 16;
  EXPECT_EQ(static_cast<double>(one.counters.bytes_stored) + lse, one.cost.bytes_written);
  const Counted cut("fwd b1 sq9 sk200 hq8 hkv1 d64 bf16 causal lse");
  ASSERT_EQ(cut.config.num_packed_heads, 4);
  EXPECT_EQ(static_cast<double>(cut.counters.wgmma_flops), cut.flops_of_tiles(64));
  EXPECT_EQ(static_cast<double>(cut.counters.bytes_loaded), cut.bytes_of_tiles());
}

// The least traffic reads K and V once; tiles of one head each, once for each of their group.
TEST(EmulatedCounters, EveryQueryHeadLoadsItsKeys) {
  const Counted one("fwd sq256 sk512 hq4 hkv1 d64 bf16 lse");
  ASSERT_EQ(one.config.num_packed_heads, 1);
  const double q = 2.0 * 256 * 4 * 64, kv = one.cost.bytes_read - q;
  EXPECT_EQ(kv, 2.0 * 512 * 128);
  EXPECT_EQ(static_cast<double>(one.counters.bytes_loaded), q + 4 * kv);
  EXPECT_EQ(static_cast<double>(one.counters.wgmma_flops), one.cost.flops);
}

}  // namespace
}  // namespace sirdar::emulator_tests
