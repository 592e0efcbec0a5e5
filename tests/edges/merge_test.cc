// merge of partial results: natural logarithms, stable at any level, the empty result its identity.
#include "edges/uniform.h"

namespace sirdar::test {
namespace {

// Two partial results and one to hold the merged: shapes [1, rows, 1, columns] and [1, 1, rows].
struct Parts {
  Parts(DType dtype, int64_t rows, int64_t columns)
      : out_a(dtype, {1, rows, 1, columns}),
        out_b(dtype, {1, rows, 1, columns}),
        out(dtype, {1, rows, 1, columns}),
        lse_a(DType::fp32, {1, 1, rows}),
        lse_b(DType::fp32, {1, 1, rows}),
        lse(DType::fp32, {1, 1, rows}) {}
  Status run() const {
    MergeArgs args;
    args.out_a = out_a, args.lse_a = lse_a, args.out_b = out_b, args.lse_b = lse_b;
    args.out = out, args.lse = lse;
    return merge(args);
  }
  Tensor out_a, out_b, out, lse_a, lse_b, lse;
};

// B015: two empties are empty, and in a random mix each row is what it should be.
TEST(Merge, EmptyAndEmptyIsEmpty) {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    Parts parts(dtype, 40, 64);
    Random random(3);
    parts.out_a.fill_random(1), parts.out_b.fill_random(2);
    for (int64_t i = 0; i < 40; ++i) {
      const bool a = random.uniform() < 0.5, b = random.uniform() < 0.5;
      parts.lse_a.set_flat(i, a ? random.normal() : -kInfinity);
      parts.lse_b.set_flat(i, b ? random.normal() : -kInfinity);
      for (int64_t c = 0; c < 64; ++c) {
        if (!a) parts.out_a.set({0, i, 0, c}, 0);
        if (!b) parts.out_b.set({0, i, 0, c}, 0);
      }
    }
    ASSERT_TRUE(parts.run().ok());
    EXPECT_TRUE(all_finite(parts.out.values()));
    for (int64_t i = 0; i < 40; ++i) {
      const double a = parts.lse_a.flat(i), b = parts.lse_b.flat(i);
      if (std::isinf(a) && std::isinf(b)) {
        EXPECT_EQ(parts.lse.flat(i), -kInfinity);
        for (int64_t c = 0; c < 64; ++c) EXPECT_EQ(parts.out.at({0, i, 0, c}), 0);
        continue;
      }
      const double whole = std::log(std::exp(a) + std::exp(b));
      EXPECT_NEAR(parts.lse.flat(i), whole, 1e-5);
      for (int64_t c = 0; c < 64; ++c) {
        const double expected = std::exp(a - whole) * parts.out_a.at({0, i, 0, c}) +
                                std::exp(b - whole) * parts.out_b.at({0, i, 0, c});
        EXPECT_NEAR(parts.out.at({0, i, 0, c}), expected, dtype == DType::fp32 ? 1e-5 : 0.1);
      }
    }
  }
}

// B014: (0, -inf) on either side changes no bit, whatever the numbers are.
TEST(Merge, TheEmptyResultIsTheIdentity) {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    for (const double level : {0.0, -300.0, 88.0, 3e38, -3e38, 1e-40}) {
      Parts parts(dtype, 7, 33), swapped(dtype, 7, 33);
      parts.out_a.fill_random(1, 100), parts.lse_a.fill_random(2), parts.out_b.fill(0);
      for (int64_t i = 0; i < 7; ++i) parts.lse_a.set_flat(i, parts.lse_a.flat(i) + level);
      parts.lse_b.fill(-kInfinity);
      swapped.out_a = parts.out_b, swapped.lse_a = parts.lse_b;
      swapped.out_b = parts.out_a, swapped.lse_b = parts.lse_a;
      ASSERT_TRUE(parts.run().ok());
      ASSERT_TRUE(swapped.run().ok());
      EXPECT_EQ(parts.out.bits(), parts.out_a.bits());
      EXPECT_EQ(parts.lse.bits(), parts.lse_a.bits());
      EXPECT_EQ(swapped.out.bits(), parts.out_a.bits());
      EXPECT_EQ(swapped.lse.bits(), parts.lse_a.bits());
    }
  }
}

// B152: 600 apart in either direction: the larger wins, nothing overflows.
TEST(Merge, LevelsFarApart) {
  for (const auto& [a, b] :
       {std::pair(-300.0, 300.0), std::pair(300.0, -300.0), std::pair(-1e38, 1e38),
        std::pair(3e38, 3e38), std::pair(-3e38, -3e38)}) {
    Parts parts(DType::fp32, 1, 2);
    parts.out_a.fill(1), parts.out_b.fill(3), parts.lse_a.fill(a), parts.lse_b.fill(b);
    ASSERT_TRUE(parts.run().ok());
    EXPECT_NEAR(parts.out.flat(1), a == b ? 2 : a > b ? 1 : 3, 1e-6);
    EXPECT_NEAR(parts.lse.flat(0) / std::max(a, b), 1, 1e-6);
  }
}

// B151: natural logarithms. Weights e^ln3 and e^ln1: three quarters and a quarter, lse = ln 4.
TEST(Merge, LseIsANaturalLogarithm) {
  Parts parts(DType::fp32, 1, 2);
  parts.out_a.fill(4), parts.out_b.fill(8), parts.lse_a.fill(std::log(3.0)), parts.lse_b.fill(0);
  ASSERT_TRUE(parts.run().ok());
  EXPECT_NEAR(parts.out.flat(0), 5, 1e-6);
  EXPECT_NEAR(parts.lse.flat(0), std::log(4.0), 1e-6);
}

TEST(Merge, GroupingDoesNotMatter) {
  Parts ab(DType::fp32, 20, 8), bc(DType::fp32, 20, 8), left(DType::fp32, 20, 8),
      right(DType::fp32, 20, 8);
  ab.out_a.fill_random(1), ab.lse_a.fill_random(2, 10), ab.out_b.fill_random(3),
      ab.lse_b.fill_random(4, 10);
  bc.out_a = ab.out_b, bc.lse_a = ab.lse_b;
  bc.out_b.fill_random(5), bc.lse_b.fill_random(6, 10);
  ASSERT_TRUE(ab.run().ok());
  ASSERT_TRUE(bc.run().ok());
  left.out_a = ab.out, left.lse_a = ab.lse, left.out_b = bc.out_b, left.lse_b = bc.lse_b;
  right.out_a = ab.out_a, right.lse_a = ab.lse_a, right.out_b = bc.out, right.lse_b = bc.lse;
  ASSERT_TRUE(left.run().ok());
  ASSERT_TRUE(right.run().ok());
  EXPECT_TRUE(close(left.out.values(), right.out.values()));
  EXPECT_TRUE(close(left.lse.values(), right.lse.values()));
}

TEST(Merge, InPlaceAndRaggedShapes) {
  Tensor out_a(DType::fp32, {9, 3, 5}), out_b(DType::fp32, {9, 3, 5}), out(DType::fp32, {9, 3, 5});
  Tensor lse_a(DType::fp32, {3, 9}), lse_b(DType::fp32, {3, 9}), lse(DType::fp32, {3, 9});
  out_a.fill_random(1), out_b.fill_random(2), lse_a.fill_random(3), lse_b.fill_random(4);
  MergeArgs args;
  args.out_a = out_a, args.lse_a = lse_a, args.out_b = out_b, args.lse_b = lse_b, args.out = out,
  args.lse = lse;
  ASSERT_TRUE(merge(args).ok());
  for (int64_t i = 0; i < 9; ++i) {
    for (int64_t h = 0; h < 3; ++h) {
      const double a = std::exp(lse_a.at({h, i})), b = std::exp(lse_b.at({h, i}));
      EXPECT_NEAR(lse.at({h, i}), std::log(a + b), 1e-6);
      EXPECT_NEAR(out.at({i, h, 4}), (a * out_a.at({i, h, 4}) + b * out_b.at({i, h, 4})) / (a + b),
                  1e-5);
    }
  }
  args.out = out_a, args.lse = lse_a;
  ASSERT_TRUE(merge(args).ok());
  EXPECT_EQ(out_a.bits(), out.bits());
  EXPECT_EQ(lse_a.bits(), lse.bits());
}

TEST(Merge, StridesAreHonoured) {
  Parts parts(DType::fp32, 6, 4), spaced(DType::fp32, 6, 4);
  parts.out_a.fill_random(1), parts.out_b.fill_random(2), parts.lse_a.fill_random(3),
      parts.lse_b.fill_random(4);
  spaced = parts;
  spaced.out = Tensor(DType::fp32, {1, 6, 1, 4}, {100, 7, 5, 1});
  spaced.lse = Tensor(DType::fp32, {1, 1, 6}, {50, 40, 3});
  ASSERT_TRUE(parts.run().ok());
  ASSERT_TRUE(spaced.run().ok());
  EXPECT_EQ(spaced.out.bits(), parts.out.bits());
  EXPECT_EQ(spaced.lse.bits(), parts.lse.bits());
  EXPECT_TRUE(spaced.out.gaps_intact());
  EXPECT_TRUE(spaced.lse.gaps_intact());
}

TEST(Merge, WhatDoesNotFitIsRefused) {
  const auto argument_of = [](const std::function<void(MergeArgs&)>& edit) {
    const Parts parts(DType::fp32, 6, 4);
    MergeArgs args;
    args.out_a = parts.out_a, args.lse_a = parts.lse_a, args.out_b = parts.out_b,
    args.lse_b = parts.lse_b;
    args.out = parts.out, args.lse = parts.lse;
    edit(args);
    const Status status = merge(args);
    EXPECT_FALSE(status.ok());
    return status.argument();
  };
  EXPECT_EQ(argument_of([](MergeArgs& a) { a.out_b = {}; }), "out_b");
  EXPECT_EQ(argument_of([](MergeArgs& a) { a.lse_b.shape[2] = 5; }), "lse_b");
  EXPECT_EQ(argument_of([](MergeArgs& a) { a.out.shape[3] = 3; }), "out");
  EXPECT_EQ(argument_of([](MergeArgs& a) { a.lse_a.dtype = DType::bf16; }), "lse_a");
  EXPECT_EQ(argument_of([](MergeArgs& a) { a.out = a.out_b; }), "out");
  EXPECT_EQ(argument_of([](MergeArgs& a) { a.out.stride[1] = 0; }), "out");
}

}  // namespace
}  // namespace sirdar::test
