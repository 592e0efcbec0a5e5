// The products in bf16 (avx512_bf16): what the instructions do, by hand; that emulated and real
// ones agree bit for bit; how far rounding the weights moves a result; and that bits are a row's
// own. Where the machine lacks the instructions all but the comparison runs on emulated ones.
#include <gtest/gtest.h>

#include <sirdar/sirdar.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check/compare.h"
#include "check/inputs.h"
#include "check/run_check.h"
#include "cpu/dispatch.h"
#include "shared/float_bits.h"
#include "support/call.h"

#if defined(__x86_64__)
#include "support/emulated_bf16.h"

namespace sirdar::cpu {
namespace {

constexpr int kLanes = 16, kRows = 8;
constexpr float kInf = std::numeric_limits<float>::infinity();

bool has_avx512() { return choose_isa(Device::host(), "avx512").ok(); }

std::vector<ProductKernels> tables() {
  std::vector<ProductKernels> result;
  if (has_avx512()) result.push_back(kEmulatedBf16Products);
  if (has_avx512() && has_avx512_bf16()) result.push_back(kAvx512Bf16Products);
  return result;
}

float word(float low, float high) {
  const uint16_t halves[2] = {float_to_bf16(low), float_to_bf16(high)};
  float result;
  std::memcpy(&result, halves, sizeof(result));
  return result;
}

uint32_t bits(float x) {
  uint32_t result;
  std::memcpy(&result, &x, sizeof(result));
  return result;
}

float from_bits(uint32_t x) {
  float result;
  std::memcpy(&result, &x, sizeof(result));
  return result;
}

// One key, one query: the sum of q[c] k[c], two at a time.
float dot(const ProductKernels& kernels, const std::vector<float>& q, const std::vector<float>& k) {
  const int head_dim = static_cast<int>(q.size()), words = head_dim / 2;
  std::vector<float> query(static_cast<size_t>(words * kLanes), 0.0f);
  std::vector<float> key(static_cast<size_t>(words * kRows), 0.0f), score(kLanes), row_max(kLanes);
  const std::vector<float> lowest(kLanes, -kInf);
  for (int c = 0; c < words; ++c) {
    const size_t at = static_cast<size_t>(2 * c);
    query[static_cast<size_t>(c * kLanes)] = word(q[at], q[at + 1]);
    key[static_cast<size_t>(c * kRows)] = word(k[at], k[at + 1]);
  }
  kernels.qk[0]({.k = key.data(),
                 .block_stride = words * kRows,
                 .row_stride = 1,
                 .column_stride = kRows,
                 .q = query.data(),
                 .scores = score.data(),
                 .max_in = lowest.data(),
                 .max_out = row_max.data(),
                 .num_keys = 1,
                 .head_dim = head_dim});
  return score[0];
}

TEST(CpuBf16, DotsAddTheSecondProductFirstAndRoundTwice) {
  const float tie = 0x1p-24f, more = 0x1.8p-24f, step = 0x1p-23f;
  for (const ProductKernels& kernels : tables()) {
    // The first word makes the sum 1. 1 + tie rounds to 1, 1 + more to 1 + step.
    EXPECT_EQ(dot(kernels, {1, 0, more, tie}, {1, 0, 1, 1}), 1 + step);
    EXPECT_EQ(dot(kernels, {1, 0, tie, more}, {1, 0, 1, 1}), 1 + 2 * step);
    // Not one rounding of the exact sum 1 + step.
    EXPECT_EQ(dot(kernels, {1, 0, tie, tie}, {1, 0, 1, 1}), 1.0f);
    // Products are exact.
    EXPECT_EQ(dot(kernels, {1.0078125f, 0}, {1.0078125f, 0}), 1.0078125f * 1.0078125f);
  }
}

TEST(CpuBf16, DotsTakeSubnormalNumbersForZero) {
  for (const ProductKernels& kernels : tables()) {
    EXPECT_EQ(dot(kernels, {0x1p-127f, 0}, {0x1p100f, 0}), 0.0f);      // an input
    EXPECT_EQ(dot(kernels, {0x1p-70f, 0}, {0x1p-60f, 0}), 0.0f);       // a sum
    EXPECT_EQ(dot(kernels, {0x1p-63f, 0}, {0x1p-63f, 0}), 0x1p-126f);  // the smallest left
    EXPECT_EQ(dot(kernels, {0x1p-70f, 1}, {0x1p-60f, 2}), 2.0f);
    EXPECT_EQ(dot(kernels, {kInf, 0}, {1, 1}), kInf);
    EXPECT_TRUE(std::isnan(dot(kernels, {kInf, kInf}, {1, -1})));
  }
}

// All upper halves of a float with lower halves around ties.
TEST(CpuBf16, WeightsRoundToNearestEven) {
  const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
  for (const ProductKernels& kernels : tables()) {
    std::vector<float> from, p;
    for (uint32_t upper = 0; upper < 0x10000; ++upper)
      for (const uint32_t low : lower) from.push_back(from_bits(upper << 16 | low));
    p = from;
    const int num_keys = static_cast<int>(p.size() / kLanes);
    ASSERT_EQ(num_keys % 2, 0);
    kernels.join[0](p.data(), num_keys);
    for (int j = 0; j < num_keys; ++j) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const float x = from[static_cast<size_t>(j * kLanes + lane)];
        const uint32_t pair = bits(p[static_cast<size_t>(j / 2 * kLanes + lane)]);
        const bool is_subnormal = x != 0 && std::abs(x) < std::numeric_limits<float>::min();
        ASSERT_EQ(j % 2 == 0 ? pair & 0xffff : pair >> 16,
                  float_to_bf16(is_subnormal ? std::copysign(0.0f, x) : x))
            << std::hexfloat << x;
      }
    }
  }
}

TEST(CpuBf16, AnOddNumberOfWeightsEndsInZero) {
  for (const ProductKernels& kernels : tables()) {
    std::vector<float> p(3 * kLanes, 0.5f);
    kernels.join[0](p.data(), 3);
    EXPECT_EQ(bits(p[0]), bits(word(0.5f, 0.5f)));
    EXPECT_EQ(bits(p[kLanes]), bits(word(0.5f, 0)));
  }
}

// What a block of keys goes through, on one table.
struct Block {
  int num_keys, head_dim, head_dim_v, vectors;
  int width = vectors * kLanes;
  std::vector<uint16_t> q, k, v;
  std::vector<const void*> q_rows, k_rows, v_rows;
  std::vector<float> scores, weights, out, alpha, max_in, max_out, sum;
  std::vector<float> narrow_scores, narrow_out;

  Block(int keys, int columns, int columns_v, int vectors_in, uint32_t seed)
      : num_keys(keys), head_dim(columns), head_dim_v(columns_v), vectors(vectors_in) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<uint16_t>& x, std::vector<const void*>& rows, int count,
                          int length) {
      x.resize(static_cast<size_t>(count * length));
      for (uint16_t& value : x) value = float_to_bf16(normal(engine));
      for (int n = 0; n < count; ++n) rows.push_back(x.data() + n * length);
    };
    fill(q, q_rows, width, head_dim);
    fill(k, k_rows, num_keys, head_dim);
    fill(v, v_rows, num_keys, head_dim_v);
  }

  void run(const ProductKernels& kernels) {
    const auto floats = [](int64_t n) { return std::vector<float>(static_cast<size_t>(n), 0.25f); };
    const int words = (head_dim + 1) / 2, pairs = (num_keys + 1) / 2;
    std::vector<float> panel = floats(words * width), packed_k = floats((num_keys + 8) * words);
    std::vector<float> packed_v = floats((head_dim_v + 8) * pairs);
    scores = narrow_scores = floats(num_keys * width);
    out = narrow_out = floats(head_dim_v * width);
    max_in = std::vector<float>(static_cast<size_t>(width), 0.5f);
    max_out = sum = alpha = max_in;
    kernels.pack_q[vectors - 1](
        {.from_rows = q_rows.data(), .panel = panel.data(), .length = head_dim});
    kernels.pack_k({k_rows.data(), packed_k.data(), num_keys, head_dim});
    kernels.pack_v({v_rows.data(), packed_v.data(), pairs * kRows, num_keys, head_dim_v});
    kernels.qk[vectors - 1]({.k = packed_k.data(),
                             .block_stride = kRows * words,
                             .row_stride = 1,
                             .column_stride = kRows,
                             .q = panel.data(),
                             .scores = scores.data(),
                             .max_in = max_in.data(),
                             .max_out = max_out.data(),
                             .scale = 0.25f,
                             .num_keys = num_keys,
                             .head_dim = head_dim});
    weights = scores;
    kernels.softmax[vectors - 1]({.scores = weights.data(),
                                  .max_in = max_in.data(),
                                  .max_out = max_out.data(),
                                  .row_sum = sum.data(),
                                  .alpha = alpha.data(),
                                  .num_keys = num_keys});
    weights.resize(static_cast<size_t>(pairs * width));
    kernels.pv[vectors - 1]({.v = packed_v.data(),
                             .row_stride = kRows,
                             .block_stride = pairs * kRows,
                             .p = weights.data(),
                             .alpha = alpha.data(),
                             .out = out.data(),
                             .num_keys = num_keys,
                             .head_dim_v = head_dim_v});
    // Few queries are one vector.
    if (vectors == 1) run_narrow(kernels, panel);
  }

  void run_narrow(const ProductKernels& kernels, const std::vector<float>& panel) {
    std::vector<float> acc(static_cast<size_t>(16 * (head_dim_v + 32)));
    std::vector<float> row_max = max_in;
    kernels.narrow_qk({.k_rows = k_rows.data(),
                       .q = panel.data(),
                       .scores = narrow_scores.data(),
                       .max_in = max_in.data(),
                       .max_out = row_max.data(),
                       .scale = 0.25f,
                       .num_keys = num_keys,
                       .head_dim = head_dim,
                       .num_lanes = kNarrowLanes,
                       .width = width});
    kernels.narrow_pv({.v_rows = v_rows.data(),
                       .p = weights.data(),
                       .key_stride = width,
                       .lane_stride = 1,
                       .alpha = alpha.data(),
                       .out = narrow_out.data(),
                       .acc = acc.data(),
                       .num_keys = num_keys,
                       .head_dim_v = head_dim_v,
                       .num_lanes = kNarrowLanes,
                       .width = width});
  }
};

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t n = 0; n < a.size(); ++n) ASSERT_EQ(bits(a[n]), bits(b[n])) << what << ' ' << n;
}

constexpr int kSizes[][3] = {{1, 1, 1},    {2, 2, 3},    {3, 7, 8},       {17, 64, 64},
                             {64, 33, 20}, {127, 80, 9}, {256, 128, 128}, {255, 512, 130}};

TEST(CpuBf16, EmulatedInstructionsAreTheRealOnes) {
  if (!has_avx512() || !has_avx512_bf16()) GTEST_SKIP() << "this CPU lacks AVX512_BF16";
  uint32_t seed = 1;
  for (const auto& [keys, columns, columns_v] : kSizes) {
    for (const int vectors : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << keys << ' ' << columns << ' ' << columns_v);
      Block real(keys, columns, columns_v, vectors, ++seed);
      Block emulated(keys, columns, columns_v, vectors, seed);
      real.run(kAvx512Bf16Products);
      emulated.run(kEmulatedBf16Products);
      expect_same_bits(real.scores, emulated.scores, "scores");
      expect_same_bits(real.weights, emulated.weights, "weights");
      expect_same_bits(real.sum, emulated.sum, "sum");
      expect_same_bits(real.out, emulated.out, "out");
      expect_same_bits(real.narrow_scores, emulated.narrow_scores, "narrow scores");
      expect_same_bits(real.narrow_out, emulated.narrow_out, "narrow out");
    }
  }
}

// The weights of softmax are those that dropout's way over floats would leave.
TEST(CpuBf16, WeightsAreTheRoundedOnesOfFp32) {
  if (!has_avx512()) GTEST_SKIP() << "this CPU lacks AVX-512";
  for (const ProductKernels& kernels : tables()) {
    for (const int keys : {1, 2, 3, 5, 64, 67}) {
      Block block(keys, 16, 16, 2, 5);
      block.run(kernels);
      std::vector<float> p = block.scores, sum(block.max_in.size(), 0.0f), alpha = sum;
      kernels_for(Isa::avx512)
          .softmax[1]({.scores = p.data(),
                       .max_in = block.max_in.data(),
                       .max_out = block.max_out.data(),
                       .row_sum = sum.data(),
                       .alpha = alpha.data(),
                       .num_keys = keys});
      kernels.join[1](p.data(), keys);
      p.resize(block.weights.size());
      expect_same_bits(block.weights, p, "weights");
    }
  }
}

PlanOptions paired() {
  PlanOptions options;
  options.implementation = "cpu.forward";
  options.isa = "avx512_bf16";
  options.num_threads = 1;
  return options;
}

// A weight rounded to bf16 is off by at most half an epsilon, 2^-8 of itself: so is the sum of
// p |v|, and nothing but fp32 roundings comes on top where out is fp32.
TEST(CpuBf16, RoundedWeightsCostHalfAnEpsilonAtMost) {
  if (!has_avx512()) GTEST_SKIP() << "this CPU lacks AVX-512";
  double largest = 0;
  for (const char* text : {"fwd b2 s130 hq4 hkv2 d64 bf16 out:fp32 lse causal",
                           "fwd sq33 sk700 h2 d128 bf16 out:fp32 lse",
                           "fwd sq3 sk900 h2 d80 bf16 "
                           "out:fp32 lse",
                           "fwd sq40 sk90 h2 d16 bf16 out:fp32 lse dropout:0.3"}) {
    check::Inputs inputs(Problem::parse(text).value(), 3);
    const auto expected = check::expected_outputs(inputs.problem(), inputs.args());
    const check::Report report = check::check(inputs, paired(), 3);
    ASSERT_TRUE(report.ok) << report.text;
    for (const check::Expected& one : expected) {
      const check::Deviation deviation = check::compare(one);
      if (one.name == "lse") {
        EXPECT_LE(deviation.worst, 8) << text;  // epsilons of fp32
      } else {
        EXPECT_EQ(one.epsilon, 0x1p-7);
        EXPECT_LE(deviation.worst, 0.5 + 64 * 0x1p-16) << text;  // 64 epsilons of fp32
        largest = std::max(largest, deviation.worst);
      }
    }
  }
  EXPECT_GT(largest, 0.01) << "weights are not rounded: other kernels ran";
}

// Lanes of a panel of 32, of 16, few queries read in place, several groups of blocks and segments.
TEST(CpuBf16, BitsDoNotDependOnThreadsOrTiles) {
  if (!has_avx512()) GTEST_SKIP() << "this CPU lacks AVX-512";
  for (const char* text :
       {"fwd b1 sq70 sk2600 hq4 hkv2 d24 bf16 causal lse",
        "fwd b2 s300 h2 d64 bf16 window:40,9 lse", "fwd b1 sq1 sk5000 h1 d17 bf16 lse",
        "fwd b1 sq45 sk601 h2 d20 bf16 lse dropout:0.2"}) {
    test::Call call{std::string(text)};
    PlanOptions options = paired();
    ASSERT_TRUE(call.run(options).ok());
    const std::vector<uint8_t> expected = call.output_bits();
    for (const int threads : {1, 5}) {
      for (const char* block_m : {"32", "64", "512"}) {
        for (const char* group_n : {"1", "3"}) {
          options.num_threads = threads;
          options.knobs = {{"block_m", block_m}, {"group_n", group_n}};
          ASSERT_TRUE(call.run(options).ok());
          EXPECT_EQ(call.output_bits(), expected)
              << text << " threads " << threads << " block_m " << block_m << " group_n " << group_n;
        }
      }
    }
  }
}

// A query alone takes the kernels for few, among forty the general ones.
TEST(CpuBf16, ARowHasItsBitsWhateverRowsAreBesideIt) {
  if (!has_avx512()) GTEST_SKIP() << "this CPU lacks AVX-512";
  for (const char* rest : {"sk333 h2 d40 bf16 out:fp32 lse", "sk700 hq4 hkv2 d65 bf16 lse"}) {
    test::Call many("fwd sq40 " + std::string(rest)), one("fwd sq1 " + std::string(rest));
    one.k = many.k, one.v = many.v;
    ASSERT_TRUE(many.run(paired()).ok());
    for (const int64_t i : {0, 7, 39}) {
      test::copy_row(one.q, 0, many.q, i);
      ASSERT_TRUE(one.run(paired()).ok());
      const int64_t columns = one.out.size();
      for (int64_t c = 0; c < columns; ++c)
        EXPECT_EQ(one.out.flat(c), many.out.flat(i * columns + c)) << rest << " row " << i;
    }
  }
}

// A NaN or infinity in V where some rows of the same tile see it and others do not, at either place
// of a pair of keys.
TEST(CpuBf16, NonFiniteValuesReachTheRowsThatSeeThemOnly) {
  if (!has_avx512()) GTEST_SKIP() << "this CPU lacks AVX-512";
  for (const char* text :
       {"fwd b1 s70 h2 d16 bf16 causal lse", "fwd b1 s70 h2 d16 bf16 window:3,2 lse",
        "fwd b1 s69 hq4 hkv2 d9 bf16 document causal lse", "fwd b1 s70 h2 d16 bf16 mask lse",
        "fwd b1 s69 h2 d16 bf16 causal lse dropout:0.4"}) {
    check::Inputs inputs(Problem::parse(text).value(), 11);
    const TensorView& v = inputs.args().v;
    auto* rows = static_cast<uint16_t*>(v.data);
    rows[30 * v.stride[1] + 2] = float_to_bf16(std::numeric_limits<float>::quiet_NaN());
    rows[41 * v.stride[1] + v.stride[2]] = float_to_bf16(kInf);
    rows[68 * v.stride[1]] = float_to_bf16(kInf);
    inputs.accept();
    const check::Report report = check::check(inputs, paired(), 11);
    EXPECT_TRUE(report.ok) << text << ": " << report.text;
  }
}

}  // namespace
}  // namespace sirdar::cpu
#endif
