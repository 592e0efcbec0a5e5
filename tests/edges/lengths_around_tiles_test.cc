// Lengths just below, at and just above every power of two, so that no tile size of any
// implementation escapes: every row and every key counts, and nothing beyond them.
#include "edges/uniform.h"

namespace sirdar::test {
namespace {

const std::vector<int64_t> kLengths{1,  2,  3,  7,  8,  9,  15,  16,  17,
                                    31, 32, 33, 63, 64, 65, 127, 128, 129};

TEST(LengthsAroundTiles, EveryKeyCountsOnce) {
  for (const int64_t seqlen_k : kLengths) {
    for (const char* seqlen_q : {"1", "5", "17"}) {
      expect_visibility(std::string("fwd b2 sq") + seqlen_q + " sk" + std::to_string(seqlen_k) +
                            " hq2 hkv1 d8 fp32 lse",
                        [](auto, auto, auto, auto) { return true; });
    }
  }
}

TEST(LengthsAroundTiles, EveryRowIsWritten) {
  for (const int64_t seqlen_q : kLengths) {
    const std::string n = std::to_string(seqlen_q);
    expect_visibility("fwd b2 sq" + n + " sk" + n + " hq3 hkv1 d8 fp32 causal lse",
                      [](auto, auto, int64_t i, int64_t j) { return j <= i; });
    expect_visibility("fwd b1 sq" + n + " sk40 hq2 hkv2 d8 fp32 causal lse",
                      [&](auto, auto, int64_t i, int64_t j) { return j <= i + 40 - seqlen_q; });
  }
}

TEST(LengthsAroundTiles, BeyondTheLargestTiles) {
  for (const char* n : {"255", "256", "257", "511", "513"}) {
    expect_visibility(std::string("fwd b1 sq") + n + " sk" + n + " hq1 hkv1 d4 fp32 causal lse",
                      [](auto, auto, int64_t i, int64_t j) { return j <= i; });
  }
}

// B057: keys counted one by one through every length up to 130, with a boolean mask.
TEST(LengthsAroundTiles, EveryKeyLengthWithAMask) {
  for (int64_t seqlen_k = 1; seqlen_k <= 130; ++seqlen_k) {
    Call call("fwd b1 sq3 sk" + std::to_string(seqlen_k) + " hq2 hkv2 d8 fp32 mask:qk lse");
    make_uniform(call);
    call.mask.fill_by([](const int64_t* c) { return (c[2] + c[3]) % 3 != 1; });
    for (const Variant& variant : few_variants(call.problem)) {
      expect_uniform(call, variant,
                     [](auto, auto, int64_t i, int64_t j) { return (i + j) % 3 != 1; });
    }
  }
}

// B017: lengths that end half a tile, rows whose lse is far below -88.7: exp(0 - lse) of a padded
// key would overflow. The mask given as a tensor, as causal, and absent must be the same
// computation.
TEST(LengthsAroundTiles, VeryNegativeRowsInAHalfTile) {
  for (const int64_t length : {64, 65, 192}) {
    for (const char* mask : {"", " causal", " mask:qk"}) {
      Call call("bwd b1 sq" + std::to_string(length) + " sk" + std::to_string(length) +
                " hq1 hkv1 d64 bf16" + mask);
      call.q.fill_random(1, 0.1);
      call.k.fill_random(2, 0.1);
      for (int64_t i = 0; i < length; ++i) {
        call.q.set({0, i, 0, 0}, 1);
        call.k.set({0, i, 0, 0}, -120 * 8);
      }
      if (call.mask.present()) call.mask.fill_by([](const int64_t* c) { return c[3] <= c[2]; });
      call.run_forward_first();
      EXPECT_LT(call.lse.flat(length - 1), -88.7);
      for (const Variant& variant : variants(call.problem)) {
        expect_matches_float64(call, variant);
        EXPECT_TRUE(all_finite(call.dq.values()));
        EXPECT_TRUE(all_finite(call.dk.values()));
      }
    }
  }
}

// B114: one key beyond a tile, a score that grows with distance, causal.
TEST(LengthsAroundTiles, AGrowingScoreStaysOutOfThePadding) {
  Call call("bwd b1 sq129 sk129 hq1 hkv1 d64 bf16 causal score_mod:\"score + (q - k)\"");
  expect_all_match_float64(call);
  EXPECT_TRUE(all_finite(call.dq.values()));
}

}  // namespace
}  // namespace sirdar::test
