// Items of the last round of the emulated Hopper forward, shared out among its thread blocks.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "emulator/support/emulated_call.h"

namespace sirdar::emulator_tests {
namespace {

// Results leave through V; through Q's buffers, with turns and without.
constexpr const char* kProblem =
    "fwd b1 sq140 sk290 h3 d256 bf16 sink lse | shares_last_round=true";
constexpr const char* kStaged[] = {"fwd b1 sq200 sk600 h3 d128 bf16 lse | shares_last_round=true",
                                   "fwd b1 sq300 sk333 h3 d64 bf16 lse | shares_last_round=true"};

// Six items of five key blocks. Two thread blocks share none, four of them two items in shares of
// three blocks, five one item in shares of one.
TEST(EmulatedLastRound, OfAnyNumberOfThreadBlocks) {
  EmulatedCall call(kProblem);
  ASSERT_TRUE(call.kernels().config.shares_last_round);
  ASSERT_EQ(call.params().num_items, 6);
  for (const int blocks : {1, 2, 4, 5, 6})
    for (uint64_t seed = 1; seed <= 2; ++seed)
      EXPECT_EQ(call.run(seed, blocks).fault, "") << blocks << " blocks, seed " << seed;
}

TEST(EmulatedLastRound, BesideResultsThatLeaveThroughQ) {
  for (const char* problem : kStaged) {
    EmulatedCall call(problem);
    ASSERT_TRUE(call.kernels().config.shares_last_round);
    ASSERT_EQ(call.params().num_items, 6);
    for (const int blocks : {2, 4, 5})
      for (uint64_t seed = 1; seed <= 3; ++seed)
        EXPECT_EQ(call.run(seed, blocks).fault, "") << problem << blocks << ", seed " << seed;
  }
}

TEST(EmulatedLastRound, GivesTheSameBitsInEveryRun) {
  EmulatedCall call(kProblem);
  std::vector<double> first;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    ASSERT_EQ(call.run(seed, 4).fault, "") << seed;
    std::vector<double> results;
    for (const test::Tensor* tensor : {&call.call().out, &call.call().lse})
      for (int64_t i = 0; i < tensor->size(); ++i) results.push_back(tensor->flat(i));
    if (first.empty()) first = results;
    EXPECT_EQ(results, first) << seed;
  }
}

// Parts of one item whose largest logits lie far apart.
TEST(EmulatedLastRound, TakesOneReference) {
  EmulatedCall call(kProblem, [](test::Call& args) {
    for (int64_t column = 0; column < 256; ++column) {
      for (int64_t head = 0; head < 3; ++head) {
        for (int64_t row = 0; row < 140; row += 3) args.q.set({0, row, head, column}, 4);
        args.k.set({0, 30, head, column}, 4);
        args.k.set({0, 250, head, column}, -4);
      }
    }
  });
  EXPECT_EQ(call.run(1, 4).fault, "");
  EXPECT_EQ(call.run(1, 5).fault, "");
}

}  // namespace
}  // namespace sirdar::emulator_tests
