// The whole ladder: every rung is right, every check passes, and what cannot be climbed is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <tuple>

#include "reference/ladder/climb.h"
#include "reference/ladder/published.h"

namespace sirdar::ladder {
namespace {

TEST(LadderClimb, EveryRungIsRightAndEveryCountAsPredicted) {
  for (const auto& [n, d, bytes] : {std::tuple(96, 16, 8192), std::tuple(1, 1, 64),
                                    std::tuple(130, 3, 400), std::tuple(65, 32, 1 << 20)}) {
    const Result<Climb> climbed = climb({{n, d, 0.25F}, bytes, 1, {}});
    ASSERT_TRUE(climbed.ok()) << climbed.status().message();
    std::set<std::string> systems;
    for (const Rung& rung : climbed.value().rungs) {
      systems.insert(rung.system);
      EXPECT_LT(rung.max_error, 1e-5) << rung.name << " " << n;
      EXPECT_LE(rung.counts.peak_fast_bytes, bytes) << rung.name;
    }
    EXPECT_EQ(systems,
              (std::set<std::string>{"S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S11"}));
    for (const Check& check : climbed.value().checks) {
      EXPECT_TRUE(check.passes()) << n << " " << check.claim << ": " << check.counted << " "
                                  << check.predicted << " " << check.upper;
    }
  }
}

TEST(LadderClimb, SameSeedSameCounts) {
  const ClimbOptions options{{40, 8, 0.5F}, 4096, 3, {}};
  const Climb a = climb(options).value(), b = climb(options).value();
  ASSERT_EQ(a.rungs.size(), b.rungs.size());
  for (size_t i = 0; i < a.rungs.size(); ++i) {
    EXPECT_EQ(a.rungs[i].counts, b.rungs[i].counts);
    EXPECT_EQ(a.rungs[i].max_error, b.rungs[i].max_error);
  }
}

TEST(LadderClimb, RefusesWhatItCannotHold) {
  const auto argument = [](Head head, int64_t bytes) {
    const Result<Climb> climbed = climb({head, bytes, 1, {}});
    return climbed.ok() ? "" : climbed.status().argument();
  };
  EXPECT_EQ(argument({0, 8, 1}, 4096), "seqlen_q");
  EXPECT_EQ(argument({kMaxSeqlen + 1, 8, 1}, 4096), "seqlen_q");
  EXPECT_EQ(argument({8, 0, 1}, 4096), "head_dim");
  EXPECT_EQ(argument({8, 8, 1}, -1), "fast_memory");
  // 8 rows of 8, two scores, two statistics: 68 elements.
  EXPECT_EQ(argument({8, 8, 1}, 68 * 4 - 1), "fast_memory");
  EXPECT_EQ(argument({8, 8, 1}, 68 * 4), "");
}

TEST(LadderClimb, CheckRelations) {
  EXPECT_TRUE((Check{"", "", 2, Relation::equal, 2}.passes()));
  EXPECT_FALSE((Check{"", "", 2, Relation::equal, 3}.passes()));
  EXPECT_TRUE((Check{"", "", 2, Relation::at_most, 2}.passes()));
  EXPECT_FALSE((Check{"", "", 2, Relation::less, 2}.passes()));
  EXPECT_TRUE((Check{"", "", 2, Relation::between, 1, 3}.passes()));
  EXPECT_FALSE((Check{"", "", 4, Relation::between, 1, 3}.passes()));
  EXPECT_FALSE((Check{"", "", NAN, Relation::between, 1, 3}.passes()));
}

TEST(LadderPublished, TheClosedFormsAtThePublishedSizes) {
  const PublishedTable table = evaluate_published_table();
  // 12 and 14 N^2 d of matrix products for each of 1024 heads, N = 1024, d = 64: 824.6 and 962.1.
  EXPECT_NEAR(table.standard.gflop, 824.6, 0.02 * 824.6);
  EXPECT_NEAR(table.flash.gflop, 962.1, 0.02 * 962.1);
  // Standard: eleven N^2 passes and a few of Nd, 2 bytes each.
  EXPECT_GT(table.standard.gigabytes, 11 * 2.147);
  EXPECT_LT(table.standard.gigabytes, 12 * 2.147);
  // FlashAttention within 40 % of the printed 4.4 GB.
  EXPECT_NEAR(table.flash.gigabytes, table.kFlash.gigabytes, 0.4 * table.kFlash.gigabytes);
}

}  // namespace
}  // namespace sirdar::ladder
