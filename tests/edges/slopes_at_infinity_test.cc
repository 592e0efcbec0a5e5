// A score_mod's derivative where it is infinite or meets a NaN: one query over two or three keys,
// by hand.
#include "support/call.h"

#include <cmath>

namespace sirdar::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Case {
  std::string score_mod;
  std::vector<double> k, v, w;
  std::vector<double> dq, dk, dw;
  std::string rest = "";
};

void expect_by_hand(const Case& one) {
  Call call("bwd b1 sq1 sk" + std::to_string(one.k.size()) + " h1 d1 scale:1 score_mod:\"" +
            one.score_mod + "\"" + (one.w.empty() ? "" : " tensor:w:fp32:1:grad") + one.rest);
  call.q.fill(1);
  call.dout.fill(1);
  call.k.fill(one.k);
  call.v.fill(one.v);
  for (size_t n = 0; n < one.w.size(); ++n)
    call.tensors[0].set_flat(static_cast<int64_t>(n), one.w[n]);
  call.run_forward_first();
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str() + ": " + one.score_mod);
    ASSERT_TRUE(call.run(variant).ok());
    EXPECT_TRUE(near(call.dq.values(), one.dq, 1e-6));
    EXPECT_TRUE(near(call.dk.values(), one.dk, 1e-6));
    for (size_t n = 0; n < one.dw.size(); ++n) {
      const double actual = call.dtensors[0].flat(static_cast<int64_t>(n));
      EXPECT_TRUE(near({actual}, {one.dw[n]}, 1e-6)) << n;
    }
  }
}

// Weights 1/2 of values 1 and 3 under dout = 1: dS = -1/2 and 1/2, and the slope of log is 1 at 1.
TEST(SlopesAtInfinity, AMaskedPairHasNoneOfIt) {
  expect_by_hand({.score_mod = "log(score)",
                  .k = {1, 0, 1},
                  .v = {1, 5, 3},
                  .dq = {0},
                  .dk = {-0.5, 0, 0.5},
                  .rest = " mask_mod:\"k != 1\""});
}

TEST(SlopesAtInfinity, WhatIsNotChosenHasNone) {
  expect_by_hand({.score_mod = "k == 1 ? -inf : log(score)",
                  .k = {1, 0, 1},
                  .v = {1, 5, 3},
                  .dq = {0},
                  .dk = {-0.5, 0, 0.5}});
}

// Both logits are 0 and weigh 1/2; sqrt is infinitely steep there, and floor passes nothing on.
TEST(SlopesAtInfinity, FloorHasNone) {
  expect_by_hand(
      {.score_mod = "sqrt(floor(score))", .k = {0.25, 0.5}, .v = {1, 3}, .dq = {0}, .dk = {0, 0}});
}

// dS is infinite times 0 at the second key, whose weight is half: inf * k there.
TEST(SlopesAtInfinity, AVisibleOneShows) {
  expect_by_hand({.score_mod = "sqrt(score) * w[k]",
                  .k = {1, 0},
                  .v = {1, 3},
                  .w = {0, 1},
                  .dq = {kNan},
                  .dk = {0, HUGE_VAL},
                  .dw = {-0.5, 0}});
}

// A NaN value makes every dS of its row a NaN. It reaches what the logits depend on.
TEST(SlopesAtInfinity, ANanReachesWhatIsChosen) {
  expect_by_hand({.score_mod = "k == 0 ? score : w[k]",
                  .k = {2, 3},
                  .v = {kNan, 1},
                  .w = {0, 0},
                  .dq = {kNan},
                  .dk = {kNan, 0},
                  .dw = {0, kNan}});
  expect_by_hand({.score_mod = "max(score, w[k])",
                  .k = {2, 3},
                  .v = {kNan, 1},
                  .w = {1, 4},
                  .dq = {kNan},
                  .dk = {kNan, 0},
                  .dw = {0, kNan}});
  expect_by_hand(
      {.score_mod = "floor(score) + k", .k = {2, 3}, .v = {kNan, 1}, .dq = {0}, .dk = {0, 0}});
}

// A slope that happens to be 0 is a number like others.
TEST(SlopesAtInfinity, ANanTimesASlopeOfZeroIsANan) {
  expect_by_hand({.score_mod = "score * w[k]",
                  .k = {2, 0},
                  .v = {kNan, 1},
                  .w = {-0.0, 0},
                  .dq = {kNan},
                  .dk = {kNan, kNan},
                  .dw = {kNan, kNan}});
}

}  // namespace
}  // namespace sirdar::test
