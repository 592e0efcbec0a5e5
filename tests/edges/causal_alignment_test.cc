// Where causal masks and windows lie when there are more keys than queries, or fewer, and which
// keys a window counts.
#include "edges/uniform.h"

namespace sirdar::test {
namespace {

// B026: one query and a cache. Aligned top left it sees key 0 only, bottom right it sees all of
// them.
TEST(CausalAlignment, TheTwoAlignmentsHaveTwoNames) {
  expect_visibility("fwd b2 sq1 sk8 hq2 hkv1 d8 fp32 causal top-left lse",
                    [](auto, auto, auto, int64_t j) { return j == 0; });
  expect_visibility("fwd b2 sq1 sk8 hq2 hkv1 d8 fp32 causal lse",
                    [](auto, auto, auto, auto) { return true; });
  expect_visibility("fwd b2 sq3 sk8 hq2 hkv1 d8 fp32 causal top-left lse",
                    [](auto, auto, int64_t i, int64_t j) { return j <= i; });
  expect_visibility("fwd b2 sq3 sk8 hq2 hkv1 d8 fp32 causal lse",
                    [](auto, auto, int64_t i, int64_t j) { return j <= i + 5; });
}

// B013: with more queries than keys the first rows see nothing and say so.
TEST(CausalAlignment, MoreQueriesThanKeysLeaveTheFirstRowsEmpty) {
  const Visible visible = [](auto, auto, int64_t i, int64_t j) { return j <= i - 5; };
  expect_visibility("fwd b2 sq8 sk3 hq2 hkv1 d8 fp32 causal lse", visible);
  expect_visibility("fwd b2 sq8 sk3 hq2 hkv1 d8 bf16 causal lse", visible);
  expect_visibility("fwd b2 sq8 sk3 hq2 hkv1 d8 fp32 paged16 causal lse", visible,
                    {{}, {}, {}, {3, 3}});
}

// B027: a right bound of seqlen_q - 1 or more hides nothing, however many queries there are.
TEST(CausalAlignment, AWideRightBoundHidesNothing) {
  for (const char* window : {",255", ",200", ",2147483647", ",9223372036854775807"}) {
    const int64_t right = window == std::string(",200") ? 200 : 255;
    expect_visibility(std::string("fwd b1 sq256 sk64 hq1 hkv1 d8 fp32 lse window:") + window,
                      [right](auto, auto, int64_t i, int64_t j) { return j <= i - 192 + right; });
  }
}

// B031: both ends of a window are inclusive: (W, 0) shows a query itself and W keys before it.
TEST(CausalAlignment, WindowsCountKeysBesidesTheDiagonal) {
  expect_visibility("fwd b2 sq8 sk8 hq2 hkv2 d8 fp32 window:2,0 lse",
                    [](auto, auto, int64_t i, int64_t j) { return i - 2 <= j && j <= i; });
  expect_visibility("fwd b2 sq8 sk8 hq2 hkv2 d8 fp32 window:0,0 lse",
                    [](auto, auto, int64_t i, int64_t j) { return i == j; });
  expect_visibility("fwd b2 sq8 sk8 hq2 hkv2 d8 fp32 window:0,3 lse",
                    [](auto, auto, int64_t i, int64_t j) { return i <= j && j <= i + 3; });
  expect_visibility("fwd b1 sq300 sk300 hq1 hkv1 d8 fp16 window:128,0 lse",
                    [](auto, auto, int64_t i, int64_t j) { return i - 128 <= j && j <= i; });
}

// B032: an absent right side shows the whole future, a right side of 0 hides it.
TEST(CausalAlignment, AnAbsentSideIsUnboundedAndZeroIsNot) {
  expect_visibility("fwd b1 sq64 sk64 hq1 hkv1 d8 fp32 window:8, lse",
                    [](auto, auto, int64_t i, int64_t j) { return j >= i - 8; });
  expect_visibility("fwd b1 sq64 sk64 hq1 hkv1 d8 fp32 window:8,0 lse",
                    [](auto, auto, int64_t i, int64_t j) { return j >= i - 8 && j <= i; });
  expect_visibility("fwd b1 sq64 sk64 hq1 hkv1 d8 fp32 window:8, causal lse",
                    [](auto, auto, int64_t i, int64_t j) { return j >= i - 8 && j <= i; });
}

// B034: a single query of a long cache keeps its window: keys 384..511 of 512.
TEST(CausalAlignment, DecodingKeepsTheWindow) {
  const Visible last = [](auto, auto, auto, int64_t j) { return j >= 512 - 128; };
  expect_visibility("fwd b2 sq1 sk512 hq2 hkv1 d8 fp32 window:127,0 lse", last);
  expect_visibility("fwd b2 sq1 sk512 hq2 hkv1 d8 fp32 paged16 window:127,0 lse", last,
                    {{}, {}, {}, {512, 512}});
}

// B035: a left window alone, few queries at the end of many keys; also the first tile of queries.
TEST(CausalAlignment, LeftWindowsCountFromTheAlignedPosition) {
  const Visible visible = [](auto, auto, int64_t i, int64_t j) { return j >= i + 400 - 140 - 33; };
  expect_visibility("fwd b1 sq140 sk400 hq2 hkv1 d8 fp32 window:33, lse", visible);
  expect_visibility("fwd b1 sq140 sk400 hq2 hkv1 d8 fp16 paged16 window:33, lse", visible,
                    {{}, {}, {}, {400}});
}

// Sequences of a batch are aligned by their own lengths, the ones in use.
TEST(CausalAlignment, EverySequenceIsAlignedByItsOwnLengths) {
  const std::vector<int32_t> q{5, 1, 9}, k{9, 12, 4};
  const auto d = [&](int64_t b) { return k[static_cast<size_t>(b)] - q[static_cast<size_t>(b)]; };
  const Visible visible = [&](int64_t b, auto, int64_t i, int64_t j) { return j <= i + d(b); };
  expect_visibility("fwd b3 sq9 sk12 hq2 hkv1 d8 fp32 ragged_q:15 ragged_k:25 causal lse", visible,
                    {q, k, {}, {}});
  expect_visibility("fwd b3 sq9 sk12 hq2 hkv1 d8 fp32 seqused_q seqused_k causal lse", visible,
                    {{}, {}, q, k});
  expect_visibility("fwd b3 sq9 sk12 hq2 hkv1 d8 fp32 ragged_q:15 paged4 causal lse", visible,
                    {q, {}, q, k});
}

TEST(CausalAlignment, ChunksAreCountedFromKeyZero) {
  expect_visibility("fwd b1 sq5 sk12 hq1 hkv1 d8 fp32 chunk:4 lse",
                    [](auto, auto, int64_t i, int64_t j) { return j / 4 == (i + 7) / 4; });
  expect_visibility("fwd b1 sq5 sk12 hq1 hkv1 d8 fp32 chunk:4 top-left lse",
                    [](auto, auto, int64_t i, int64_t j) { return j / 4 == i / 4; });
  expect_visibility(
      "fwd b1 sq12 sk5 hq1 hkv1 d8 fp32 chunk:4 lse",
      [](auto, auto, int64_t i, int64_t j) { return i >= 7 && j / 4 == (i - 7) / 4; });
}

// Gradients follow the same geometry: with q = 0 and dout = 1, dv of a key is the sum of 1 / count
// over the rows that see it.
TEST(CausalAlignment, GradientsUseTheSameAlignment) {
  for (const char* alignment : {"", " top-left"}) {
    Call call("bwd b1 sq8 sk5 hq1 hkv1 d4 fp32 window:3,1" + std::string(alignment));
    make_uniform(call);
    call.dout.fill(1);
    call.run_forward_first();
    const int64_t d = *alignment ? 0 : -3;
    const auto visible = [d](int64_t i, int64_t j) { return i + d - 3 <= j && j <= i + d + 1; };
    for (const Variant& variant : variants(call.problem)) {
      SCOPED_TRACE(variant.str() + alignment);
      ASSERT_TRUE(call.run(variant).ok());
      for (int64_t j = 0; j < 5; ++j) {
        double expected = 0;
        for (int64_t i = 0; i < 8; ++i) {
          double count = 0;
          for (int64_t other = 0; other < 5; ++other) count += visible(i, other);
          if (visible(i, j)) expected += 1 / count;
        }
        EXPECT_NEAR(call.dv.at({0, j, 0, 0}), expected, 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace sirdar::test
