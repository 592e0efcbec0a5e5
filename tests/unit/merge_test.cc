// merge() row by row: the identity bit for bit, lse far apart, aliasing, dtypes.
#include <sirdar/plan.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <set>

#include "core/rules.h"
#include "shared/float_bits.h"
#include "support/rule_cases.h"

namespace sirdar {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// One row of two columns on either side, fp32.
struct OneRow {
  float out_a[2], lse_a, out_b[2], lse_b, out[2] = {-1, -1}, lse = -1;
  MergeArgs args() {
    const auto rows = [](float* data) {
      return TensorView::contiguous(data, DType::fp32, {1, 1, 1, 2});
    };
    const auto stat = [](float* data) {
      return TensorView::contiguous(data, DType::fp32, {1, 1, 1});
    };
    return {rows(out_a), stat(&lse_a), rows(out_b), stat(&lse_b), rows(out), stat(&lse)};
  }
};

TEST(Merge, EqualSidesAverage) {
  OneRow row{{1, 2}, 5, {3, 6}, 5};
  ASSERT_TRUE(merge(row.args()).ok());
  EXPECT_EQ(row.out[0], 2);
  EXPECT_EQ(row.out[1], 4);
  EXPECT_FLOAT_EQ(row.lse, 5 + std::log(2.0f));
}

TEST(Merge, EmptySideIsTheIdentityBitForBit) {
  float payload;
  const uint32_t signalling = 0xffa12345u;
  std::memcpy(&payload, &signalling, 4);
  for (const bool first : {true, false}) {
    OneRow row = first ? OneRow{{payload, -0.0f}, 1e30f, {0, 0}, -kInf}
                       : OneRow{{0, 0}, -kInf, {payload, -0.0f}, 1e30f};
    ASSERT_TRUE(merge(row.args()).ok());
    uint32_t bits;
    std::memcpy(&bits, &row.out[0], 4);
    EXPECT_EQ(bits, signalling);
    EXPECT_TRUE(std::signbit(row.out[1]));
    EXPECT_EQ(row.lse, 1e30f);
  }
  OneRow both{{0, 0}, -kInf, {0, 0}, -kInf};
  ASSERT_TRUE(merge(both.args()).ok());
  EXPECT_EQ(both.out[0], 0);
  EXPECT_EQ(both.lse, -kInf);
}

TEST(Merge, FarApartAndInfinite) {
  OneRow row{{1, 1}, -300, {2, 3}, 300};
  ASSERT_TRUE(merge(row.args()).ok());
  EXPECT_EQ(row.out[1], 3);
  EXPECT_EQ(row.lse, 300);
  OneRow turned{{2, 3}, 3e38f, {1, 1}, -3e38f};
  ASSERT_TRUE(merge(turned.args()).ok());
  EXPECT_EQ(turned.out[0], 2);
  EXPECT_EQ(turned.lse, 3e38f);
  OneRow bad{{1, 1}, kInf, {2, 2}, 0};
  ASSERT_TRUE(merge(bad.args()).ok());
  EXPECT_TRUE(std::isnan(bad.out[0]) && std::isnan(bad.lse));
}

TEST(Merge, OutputsMayBeTheFirstInputs) {
  OneRow row{{1, 2}, 5, {3, 6}, 5};
  MergeArgs args = row.args();
  args.out = args.out_a;
  args.lse = args.lse_a;
  const Status status = merge(args);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(row.out_a[0], 2);
  EXPECT_EQ(row.out_a[1], 4);
  EXPECT_FLOAT_EQ(row.lse_a, 5 + std::log(2.0f));
}

// Ragged [total, heads, dim] with lse [heads, total]; bf16; weights 1/4 and 3/4.
TEST(Merge, RaggedNarrowRows) {
  uint16_t a[4], b[4], out[4];
  float lse_a[4] = {0, 0, 0, 0}, lse_b[4], lse[4];
  for (int n = 0; n < 4; ++n) {
    a[n] = float_to_bf16(static_cast<float>(4 * n));
    b[n] = float_to_bf16(static_cast<float>(4 * n + 8));
    lse_b[n] = std::log(3.0f);
  }
  const auto rows = [](uint16_t* data) {
    return TensorView::contiguous(data, DType::bf16, {2, 2, 1});
  };
  const auto stat = [](float* data) { return TensorView::contiguous(data, DType::fp32, {2, 2}); };
  const Status status = merge({rows(a), stat(lse_a), rows(b), stat(lse_b), rows(out), stat(lse)});
  ASSERT_TRUE(status.ok()) << status.message();
  for (int n = 0; n < 4; ++n) {
    EXPECT_EQ(bf16_to_float(out[n]), static_cast<float>(4 * n + 6));
    EXPECT_FLOAT_EQ(lse[n], std::log(4.0f));
  }
}

// Two rows of one head and two columns on either side, and a third place to write to.
struct Broken {
  alignas(64) float memory[6][8] = {};
  MergeArgs args;
  Broken() {
    TensorView* views[] = {&args.out_a, &args.lse_a, &args.out_b,
                           &args.lse_b, &args.out,   &args.lse};
    for (int n = 0; n < 6; ++n) {
      *views[n] = n % 2 == 0 ? TensorView::contiguous(memory[n], DType::fp32, {1, 2, 1, 2})
                             : TensorView::contiguous(memory[n], DType::fp32, {1, 1, 2});
    }
  }
};

struct RuleCase {
  std::string_view rule;
  std::function<void(Broken&)> breaks;
  std::string_view message;  // a part of it
};

const std::vector<RuleCase>& rule_cases() {
  static const std::vector<RuleCase> all = {
      {"V070", [](Broken& b) { b.args.out_a = {}; }, "out_a: it is missing"},
      {"V070", [](Broken& b) { b.args.lse_a = {}; }, "lse_a: it is missing"},
      {"V070", [](Broken& b) { b.args.out_b = {}; }, "out_b: it is missing"},
      {"V070", [](Broken& b) { b.args.lse_b = {}; }, "lse_b: it is missing"},
      {"V070", [](Broken& b) { b.args.out = {}; }, "out: it is missing"},
      {"V070", [](Broken& b) { b.args.lse = {}; }, "lse: it is missing"},
      {"V071",
       [](Broken& b) {
         b.args.out_a = TensorView::contiguous(b.memory[0], DType::fp32, {2, 2});
       },
       "out_a: rank 2 is neither"},
      {"V071", [](Broken& b) { b.args.out_b.shape[3] = 1; }, "out_b: its shape differs"},
      {"V071", [](Broken& b) { b.args.out.shape[1] = 1; }, "out: its shape differs"},
      {"V072", [](Broken& b) { b.args.lse_a.shape[2] = 1; }, "lse_a: its shape does not fit"},
      {"V072",
       [](Broken& b) {
         b.args.lse_b = TensorView::contiguous(b.memory[3], DType::fp32, {1, 2});
       },
       "lse_b: its shape does not fit"},
      {"V072", [](Broken& b) { std::swap(b.args.lse.shape[1], b.args.lse.shape[2]); },
       "lse: its shape does not fit"},
      {"V073", [](Broken& b) { b.args.out_a.dtype = DType::fp8_e4m3; }, "out_a: dtype fp8_e4m3"},
      {"V073", [](Broken& b) { b.args.out.dtype = DType::int32; }, "use fp32, bf16 or fp16"},
      {"V073", [](Broken& b) { b.args.lse_b.dtype = DType::bf16; }, "use fp32."},
      {"V074", [](Broken& b) { b.args.out.data = b.args.out_b.data; },
       "out: it shares memory with out_b"},
      {"V074", [](Broken& b) { b.args.out.data = b.memory[0] + 2; },
       "out: it shares memory with out_a"},
      {"V074", [](Broken& b) { b.args.lse.data = b.args.lse_b.data; },
       "lse: it shares memory with lse_b"},
      {"V074", [](Broken& b) { b.args.lse.data = b.args.out.data; }, "it shares memory with lse"},
  };
  return all;
}

TEST(MergeRules, TheBaseIsValid) {
  Broken fine;
  EXPECT_EQ(merge(fine.args).message(), "");
}

TEST(MergeRules, EachRuleIsSaidAndNothingIsWritten) {
  for (const RuleCase& one : rule_cases()) {
    Broken call;
    one.breaks(call);
    const Broken before = call;
    testing::expect_broken(merge(call.args), one.rule, one.message);
    EXPECT_EQ(std::memcmp(before.memory, call.memory, sizeof call.memory), 0) << one.message;
  }
}

TEST(MergeRules, EveryRuleHasACase) {
  std::set<std::string_view> covered;
  for (const RuleCase& one : rule_cases()) covered.insert(one.rule);
  for (const Rule& rule : rules())
    if (rule.id >= "V070") {
      EXPECT_TRUE(covered.contains(rule.id)) << rule.id;
    }
}

}  // namespace
}  // namespace sirdar
