// FLOPs, bytes and tiles against counting by hand and by brute force.
#include "plan/cost.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

#include "core/geometry.h"
#include "plan/tiles.h"

namespace sirdar {
namespace {

int64_t counted(const StructuredMask& mask, int64_t seqlen_q, int64_t seqlen_k) {
  int64_t count = 0;
  for (int64_t q = 0; q < seqlen_q; ++q)
    for (int64_t k = 0; k < seqlen_k; ++k) count += allows(mask, q, k) ? 1 : 0;
  return count;
}

struct Drawn {
  Mask mask;
  int64_t seqlen_q, seqlen_k;
};

Drawn draw() {
  const auto coin = [] { return *rc::gen::arbitrary<bool>(); };
  const auto size = [](int64_t least, int64_t most) {
    return *rc::gen::inRange<int64_t>(least, most + 1);
  };
  Drawn drawn{{}, size(0, 40), size(0, 40)};
  drawn.mask.is_causal = coin();
  if (coin()) drawn.mask.window_left = size(0, 45);
  if (coin()) drawn.mask.window_right = size(0, 45);
  if (coin()) drawn.mask.chunk_size = size(1, 45);
  if (coin()) drawn.mask.alignment = Alignment::top_left;
  return drawn;
}

RC_GTEST_PROP(Cost, VisiblePairsAgreeWithCounting, ()) {
  const Drawn d = draw();
  const StructuredMask mask = structured_mask(d.mask, d.seqlen_q, d.seqlen_k);
  RC_ASSERT(visible_pairs(mask, d.seqlen_q) == counted(mask, d.seqlen_q, d.seqlen_k));
}

RC_GTEST_PROP(Cost, OnlyWhatIsSeenMustBeRead, ()) {
  const Drawn d = draw();
  const StructuredMask mask = structured_mask(d.mask, d.seqlen_q, d.seqlen_k);
  std::vector<bool> rows(static_cast<size_t>(d.seqlen_q)), keys(static_cast<size_t>(d.seqlen_k));
  for (int64_t q = 0; q < d.seqlen_q; ++q)
    for (int64_t k = 0; k < d.seqlen_k; ++k)
      if (allows(mask, q, k)) rows[static_cast<size_t>(q)] = keys[static_cast<size_t>(k)] = true;
  Work work;
  add_sequence(Problem(), mask, d.seqlen_q, work);
  RC_ASSERT(work.seen_q == static_cast<double>(std::ranges::count(rows, true)));
  RC_ASSERT(work.seen_k == static_cast<double>(std::ranges::count(keys, true)));
}

RC_GTEST_PROP(Cost, TilesAgreeWithCoverage, ()) {
  const Drawn d = draw();
  Problem p;
  p.mask = d.mask;
  p.seqlen_q = d.seqlen_q;
  p.seqlen_k = d.seqlen_k;
  const int64_t block_m = *rc::gen::inRange<int64_t>(1, 9);
  const int64_t block_n = *rc::gen::inRange<int64_t>(1, 9);
  const StructuredMask mask = structured_mask(d.mask, d.seqlen_q, d.seqlen_k);
  TileCounts wanted;
  for (int64_t i = 0; i < d.seqlen_q; i += block_m)
    for (int64_t j = 0; j < d.seqlen_k; j += block_n) {
      const Cover cover = coverage(mask, Range{i, std::min(d.seqlen_q, i + block_m)},
                                   Range{j, std::min(d.seqlen_k, j + block_n)});
      ++(cover == Cover::all ? wanted.all : cover == Cover::part ? wanted.part : wanted.none);
    }
  const TileCounts tiles = count_tiles(p, block_m, block_n).value();
  RC_ASSERT(tiles.all == wanted.all);
  RC_ASSERT(tiles.part == wanted.part);
  RC_ASSERT(tiles.none == wanted.none);
}

TEST(Cost, FormulasByHand) {
  const Cost full = cost_of(Problem::parse("b2 sq3 sk5 hq4 hkv2 d8 dv16 bf16 lse").value());
  EXPECT_EQ(full.visible_pairs, 2 * 4 * 3 * 5);
  EXPECT_EQ(full.flops, 2 * 4 * 3 * 5 * (2 * 8 + 2 * 16));
  EXPECT_EQ(full.bytes_read, 2 * (2 * 3 * 4 * 8 + 2 * 5 * 2 * 8 + 2 * 5 * 2 * 16));
  EXPECT_EQ(full.bytes_written, 2 * (2 * 3 * 4 * 16) + 4 * (2 * 3 * 4));
  EXPECT_TRUE(full.is_exact);

  const Cost causal = cost_of(Problem::parse("bwd s4 h1 d8 causal").value());
  EXPECT_EQ(causal.visible_pairs, 1 + 2 + 3 + 4);
  EXPECT_EQ(causal.flops, 10 * (6 * 8 + 4 * 8));
  EXPECT_EQ(causal.bytes_read, 4 * (5 * 4 * 8 + 4));  // q, k, v, out, dout, lse
  EXPECT_EQ(causal.bytes_written, 4 * (3 * 4 * 8));
}

TEST(Cost, LengthsMakeARaggedCostExact) {
  const Problem p = Problem::parse("b2 s9 h1 d8 causal ragged:12,12").value();
  EXPECT_FALSE(cost_of(p).is_exact);
  EXPECT_EQ(cost_of(p).visible_pairs, 2 * 21) << "two sequences of 6";
  const SequenceLengths lengths[] = {{9, 9}, {3, 3}};
  EXPECT_TRUE(cost_of(p, lengths).is_exact);
  EXPECT_EQ(cost_of(p, lengths).visible_pairs, 45 + 6);
}

TEST(Cost, ARaggedTotalIsSharedOutToTheLastRow) {
  const auto pairs = [](const char* words) {
    return cost_of(Problem::parse(words).value()).visible_pairs;
  };
  EXPECT_EQ(pairs("b1000 s4096 h1 ragged:500,500"), 500) << "500 sequences of one row";
  EXPECT_EQ(pairs("b2 s9 h1 causal ragged:11,11"), 21 + 15) << "6 and 5 rows";
  EXPECT_EQ(pairs("b3 s9 h1 ragged:4,8"), 2 * 3 + 1 * 3 + 1 * 2);
  EXPECT_EQ(pairs("b3 sq2 sk9 h1 ragged:4,8"), 2 * 3 + 1 * 3 + 1 * 2);
}

TEST(Cost, AFullRaggedSideHasNoShorterSequence) {
  const Cost cost = cost_of(Problem::parse("b3 s9 h1 d8 causal ragged:27,27").value());
  EXPECT_TRUE(cost.is_exact);
  EXPECT_TRUE(cost.is_upper_bound);
  EXPECT_EQ(cost.visible_pairs, 3 * 45);
  EXPECT_FALSE(cost_of(Problem::parse("b3 s9 ragged:27,26").value()).is_exact);
}

TEST(Cost, MasksKnownOnlyWhenReadAreUpperBounds) {
  EXPECT_FALSE(cost_of(Problem::parse("s9 mask").value()).is_exact);
  EXPECT_FALSE(cost_of(Problem::parse("s9 document").value()).is_exact);
  EXPECT_FALSE(cost_of(Problem::parse("s9 bias").value()).is_exact);
  EXPECT_FALSE(cost_of(Problem::parse("s9 mask_mod:\"q<0\"").value()).is_exact);
  EXPECT_TRUE(cost_of(Problem::parse("s9 window:3,0").value()).is_exact);
}

// A bound from below must not count what may be hidden, one from above must count it all.
TEST(Cost, BoundsAreSaidOnlyWhereTheyAreBounds) {
  // One row sees 10 of 1000 keys: 4-byte rows of 8 numbers, q, 10 of k, 10 of v.
  EXPECT_EQ(cost_of(Problem::parse("sq1 sk1000 d8 window:9,0").value()).bytes_read, 4 * 8 * 21);
  EXPECT_TRUE(cost_of(Problem::parse("s9 mask").value()).is_upper_bound);
  // Lengths of 9 and 3 show 51 pairs, the 6 and 6 that are counted 42.
  EXPECT_FALSE(cost_of(Problem::parse("b2 s9 causal ragged:12,12").value()).is_upper_bound);
  EXPECT_FALSE(cost_of(Problem::parse("s9 mask seqused_k").value()).is_upper_bound);
  for (const char* words :
       {"mask", "document", "bias", "mask_mod:\"q<0\"", "seqused_k", "ragged:63,63", "paged16"}) {
    const Problem p = Problem::parse(std::string("s64 d64 bf16 ") + words).value();
    const auto plan = Plan::create(p, {}, Device::named("h200").value());
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan.value().explain().find("at least"), std::string::npos) << words;
  }
}

struct Counted {
  std::string_view problem;
  int64_t all, part, none;
  std::string_view unknown;  // the first of them
};

// 8 by 8 tiles, counted on paper. What only the data tell is never said to be fully visible.
TEST(Tiles, SayWhatTheProblemTellsAndNoMore) {
  constexpr Counted kCases[] = {
      {"s64", 64, 0, 0, ""},
      {"s64 causal", 28, 8, 28, ""},
      {"s64 mask_mod:\"q>=k\"", 28, 8, 28, ""},
      {"s64 mask_mod:\"q<0\"", 0, 0, 64, ""},
      {"s64 causal mask_mod:\"k<8\"", 7, 1, 56, ""},
      {"s64 mask", 0, 64, 0, "the mask tensor"},
      {"s64 document causal", 0, 36, 28, "document ids"},
      {"s64 bias", 0, 64, 0, "where the bias is -inf"},
      {"s64 mask_mod:\"k<n\" scalar:n", 0, 64, 0, "the mask_mod, which reads tensors or scalars"},
      {"s64 h2 mask_mod:\"h<1\"", 0, 64, 0, "the mask_mod, which differs between sequences"},
      {"s64 h1 mask_mod:\"h<1\"", 64, 0, 0, ""},
  };
  for (const Counted& one : kCases) {
    const TileCounts tiles = count_tiles(Problem::parse(one.problem).value(), 8, 8).value();
    EXPECT_EQ(tiles.all, one.all) << one.problem;
    EXPECT_EQ(tiles.part, one.part) << one.problem;
    EXPECT_EQ(tiles.none, one.none) << one.problem;
    EXPECT_EQ(tiles.unknown.empty(), one.unknown.empty()) << one.problem;
    if (!tiles.unknown.empty()) {
      EXPECT_EQ(tiles.unknown[0].find(one.unknown), 0u) << tiles.unknown[0];
    }
  }
}

TEST(Cost, PairsAreWholeNumbersAtAnySize) {
  const Wide n = 3000000001;
  EXPECT_TRUE(cost_of(Problem::parse("s3000000001 causal").value()).visible_pairs ==
              n * (n + 1) / 2);
  EXPECT_TRUE(cost_of(Problem::parse("s3000000001").value()).visible_pairs == n * n);
}

TEST(Cost, HugeSizesTakeNoTime) {
  const Cost cost = cost_of(Problem::parse("s70368744177664 causal chunk:8192 d64").value());
  const Wide chunks = 70368744177664 / 8192;
  EXPECT_TRUE(cost.visible_pairs == chunks * (8192 * 8193 / 2));
  EXPECT_FALSE(count_tiles(Problem::parse("s70368744177664 causal").value(), 128, 128).has_value());
}

TEST(Cost, EmptyBatchesCostNothing) {
  EXPECT_EQ(cost_of(Problem::parse("b0 s9 ragged:0,0").value()).flops, 0);
  EXPECT_EQ(cost_of(Problem::parse("sq0 sk9").value()).flops, 0);
}

TEST(Cost, RooflineIsTheSlowerOfTheTwo) {
  const Cost cost{.visible_pairs = 1, .flops = 200, .bytes_read = 30, .bytes_written = 20};
  EXPECT_EQ(roofline_seconds(cost, {100, 10}), 5);
  EXPECT_EQ(roofline_seconds(cost, {10, 10}), 20);
  EXPECT_TRUE(recorded_peaks(Device::named("h200").value(), DType::bf16).has_value());
  EXPECT_FALSE(recorded_peaks(Device::named("zen4").value(), DType::bf16).has_value());
}

}  // namespace
}  // namespace sirdar
