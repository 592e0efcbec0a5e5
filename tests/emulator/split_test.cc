// Keys of a query block as several items of the emulated Hopper forward, and the kernel that adds
// them. The kernels are those of problems.txt.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "emulator/support/emulated_call.h"

namespace sirdar::emulator_tests {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(),
                 kInfinity = std::numeric_limits<double>::infinity();

constexpr const char* kFewRows = "fwd b2 sq1 sk500 hq8 hkv2 d128 bf16 lse | num_splits=3";
constexpr const char* kCausal =
    "fwd b1 sq9 sk600 hq8 hkv2 d64 bf16 causal sink lse max_logit | num_splits=7";
constexpr const char* kWide = "fwd b1 sq140 sk290 h1 d256 bf16 causal lse | num_splits=3";

std::vector<double> results_of(EmulatedCall& call) {
  std::vector<double> results;
  for (const test::Tensor* tensor : {&call.call().out, &call.call().lse})
    for (int64_t i = 0; i < tensor->size(); ++i) results.push_back(tensor->flat(i));
  return results;
}

// Parts are added in the order of the keys, whoever makes them.
TEST(EmulatedSplits, GiveTheSameBitsInAnyOrder) {
  EmulatedCall call(kFewRows);
  ASSERT_EQ(call.kernels().config.num_splits, 3);
  EXPECT_EQ(call.run(1, 1).fault, "");
  const std::vector<double> first = results_of(call);
  for (const auto& [seed, blocks] : {std::pair{2, 2}, {3, 5}, {4, 8}}) {
    EXPECT_EQ(call.run(static_cast<uint64_t>(seed), blocks).fault, "") << seed;
    EXPECT_EQ(results_of(call), first) << seed;
  }
}

// One number does for what follows from the problem: four key blocks are two parts of two, and an
// item for the third has nothing to do.
TEST(EmulatedSplits, HaveAsManyItemsAsTheKnobSays) {
  const EmulatedCall call(kFewRows);
  EXPECT_EQ(call.params().num_items, 2 * 2 * 3);
}

// Where logits are so large that their logarithms' fractions are lost, parts count by their sums:
// 256 keys whose values are 1 and 244 whose values are -1, all of one score, a million.
TEST(EmulatedSplits, CountEqualScoresOfAnySize) {
  EmulatedCall call(kFewRows, [](test::Call& args) {
    for (test::Tensor* tensor : {&args.q, &args.k}) tensor->fill(300);
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t key = 0; key < 500; ++key)
        for (int64_t head = 0; head < 2; ++head)
          for (int64_t column = 0; column < 128; ++column)
            args.v.set({b, key, head, column}, key < 256 ? 1 : -1);
  });
  EXPECT_EQ(call.run(1).fault, "");
  EXPECT_NEAR(call.call().out.at({1, 0, 7, 127}), 12.0 / 500, 1e-4);
}

// A part of which a row sees the largest logit by far: what others have found counts for nothing.
TEST(EmulatedSplits, TakeOneReference) {
  EmulatedCall call(kFewRows, [](test::Call& args) {
    for (const int64_t key : {70, 400})
      for (int64_t column = 0; column < 128; ++column)
        args.k.set({0, key, key == 70 ? 0 : 1, column}, 8);
    for (int64_t column = 0; column < 128; ++column) {
      args.q.set({0, 0, 1, column}, 8);
      args.q.set({0, 0, 6, column}, 8);
    }
  });
  EXPECT_EQ(call.run(2).fault, "");
}

TEST(EmulatedSplits, HideValuesThatAreNotFinite) {
  EmulatedCall call(kCausal, [](test::Call& args) {
    args.v.set({0, 593, 0, 5}, kNaN);
    args.v.set({0, 599, 1, 6}, kInfinity);
  });
  for (uint64_t seed = 1; seed <= 2; ++seed) EXPECT_EQ(call.run(seed).fault, "") << seed;
}

// Results too wide for consumers to make again themselves.
TEST(EmulatedSplits, HideValuesThatAreNotFiniteInWideRows) {
  EmulatedCall call(kWide, [](test::Call& args) {
    args.v.set({0, 160, 0, 5}, kNaN);
    args.v.set({0, 201, 0, 201}, kInfinity);
    args.v.set({0, 289, 0, 255}, -kInfinity);
  });
  EXPECT_EQ(call.run(1, 1).fault, "");
  EXPECT_EQ(call.run(2).fault, "");
}

// What is seen and no number makes its rows NaN, and no others.
TEST(EmulatedSplits, PassOnWhatIsNotANumber) {
  EmulatedCall call(kFewRows, [](test::Call& args) {
    args.q.set({0, 0, 3, 7}, kNaN);
    args.k.set({1, 300, 1, 2}, kInfinity);
    args.v.set({1, 20, 0, 9}, kNaN);
  });
  EXPECT_EQ(call.run(1).fault, "");
}

}  // namespace
}  // namespace sirdar::emulator_tests
