// Documents of any lengths and ids, on the emulated machine.
#include <gtest/gtest.h>

#include <limits>

#include "emulator/support/emulated_call.h"

namespace sirdar::emulator_tests {
namespace {

// Of documents of these lengths, over and over; numbered from 0 if `numbers` is 0, else modulo it,
// so that ids come back.
struct Lengths {
  std::vector<int64_t> rows;
  int64_t numbers = 0;

  double id(int64_t row) const {
    int64_t end = 0;
    for (int64_t n = 0;; ++n) {
      end += rows[static_cast<size_t>(n) % rows.size()];
      if (row < end) return static_cast<double>(numbers > 0 ? n % numbers : n);
    }
  }
};

struct Documents {
  std::string problem;
  Lengths query, key;
};

void set_ids(test::Call& call, const Documents& documents) {
  call.document_q.fill_by([&](const int64_t* c) { return documents.query.id(c[1]); });
  call.document_k.fill_by([&](const int64_t* c) { return documents.key.id(c[1]); });
}

void expect_right(const Documents& documents, uint64_t seeds = 2) {
  EmulatedCall call(documents.problem, [&](test::Call& args) { set_ids(args, documents); });
  for (uint64_t seed = 1; seed <= seeds; ++seed)
    EXPECT_EQ(call.run(seed, 1 + static_cast<int>(seed)).fault, "") << "seed " << seed;
}

TEST(EmulatedDocuments, LongerThanATile) {
  const Lengths both{{170, 131, 400}};
  expect_right({"fwd b1 sq560 sk560 h2 d128 bf16 document causal lse", both, both});
  expect_right({"fwd b1 sq500 sk500 h1 d64 bf16 document lse", both, both});
}

TEST(EmulatedDocuments, ShorterThanATileAndOneToken) {
  const Lengths both{{40, 1, 150, 1, 1, 127, 128, 3}};
  expect_right({"fwd b1 sq520 sk520 h1 d128 bf16 document causal lse", both, both});
  expect_right({"fwd b1 sq400 sk400 h1 d64 bf16 document lse", {{1}}, {{1}}});
}

TEST(EmulatedDocuments, OfOtherLengthsOnTheOtherSide) {
  expect_right({"fwd b1 sq300 sk520 h2 d128 bf16 document causal lse", {{140, 30}}, {{250, 50}}});
  expect_right({"fwd b1 sq500 sk300 h1 d64 bf16 document lse", {{300, 200}}, {{35, 265}}});
  expect_right({"fwd b1 sq400 sk150 h1 d128 bf16 document causal lse", {{200}}, {{75}}});
}

TEST(EmulatedDocuments, WhoseIdsComeBack) {
  const Lengths both{{50, 140, 20, 190, 3}, 3};
  expect_right({"fwd b1 sq560 sk560 h1 d128 bf16 document causal lse", both, both});
  expect_right({"fwd b1 sq400 sk560 h1 d64 bf16 document lse", {{150, 60, 200}, 2}, both});
  expect_right(
      {"fwd b1 sq300 sk420 h1 d64 bf16 document lse max_logit", {{150, 60}, 2}, {{75}, 4}});
}

TEST(EmulatedDocuments, OfKeyThatIsThereForNobody) {
  EmulatedCall call("fwd b2 sq300 sk300 h1 d64 bf16 document lse", [](test::Call& args) {
    args.document_q.fill_by(
        [](const int64_t* c) { return c[1] < 100 ? -7.0 : 5.0 * static_cast<double>(c[0]); });
    args.document_k.fill_by([](const int64_t* c) { return c[1] < 200 ? 9.0 : 5.0; });
  });
  for (uint64_t seed = 1; seed <= 2; ++seed) EXPECT_EQ(call.run(seed).fault, "") << seed;
}

TEST(EmulatedDocuments, OfSeveralHeads) {
  const Lengths both{{150, 20, 200}};
  expect_right({"fwd b1 sq400 sk400 hq4 hkv2 d128 bf16 document causal lse", both, both});
}

// NaN and infinities in V of other documents, some of which share a block with those of a tile.
TEST(EmulatedDocuments, HideValuesThatAreNotFinite) {
  const Lengths both{{150, 20, 200}};
  for (const char* problem : {"fwd b1 sq400 sk400 h1 d128 bf16 document causal lse",
                              "fwd b1 sq300 sk300 h1 d64 bf16 document lse"}) {
    EmulatedCall call(problem, [&](test::Call& args) {
      set_ids(args, {problem, both, both});
      args.v.set({0, 149, 0, 3}, std::numeric_limits<double>::quiet_NaN());
      args.v.set({0, 160, 0, 4}, std::numeric_limits<double>::infinity());
      args.v.set({0, 171, 0, 5}, -std::numeric_limits<double>::infinity());
    });
    for (uint64_t seed = 1; seed <= 2; ++seed) EXPECT_EQ(call.run(seed).fault, "") << seed;
  }
}

// More key blocks than a word has bits: seen in the second word alone, in both, with none between.
TEST(EmulatedDocuments, OfManyKeyBlocks) {
  expect_right({"fwd b1 sq300 sk4500 h1 d64 bf16 document lse", {{100, 200}}, {{4200, 300}}}, 1);
  expect_right({"fwd b1 sq150 sk4500 h1 d64 bf16 document lse", {{150}}, {{50, 4100, 350}, 2}}, 1);
}

}  // namespace
}  // namespace sirdar::emulator_tests
