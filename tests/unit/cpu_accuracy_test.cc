// Accuracy of the CPU forward where its own arithmetic could add to that of plain fp32: weights far
// below the maximum, long dot products, long sums of values, and rows that a sink dominates.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "cpu/dispatch.h"
#include "plan/implementation.h"

namespace sirdar::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kEps = 0x1p-23;

struct Head {
  std::vector<float> q, k, v;  // [rows, head_dim], [keys, head_dim], [keys, head_dim_v]
  int64_t rows, keys, head_dim, head_dim_v;
  float scale = 1;
  float* sink = nullptr;
};

std::vector<float> forward(Head& head, std::string_view isa) {
  Problem problem;
  problem.seqlen_q = head.rows;
  problem.seqlen_k = head.keys;
  problem.head_dim = head.head_dim;
  problem.head_dim_v = head.head_dim_v;
  problem.softmax_scale = head.scale;
  problem.has_sink = head.sink != nullptr;
  PlanOptions options;
  options.implementation = "cpu.forward";
  options.isa = isa;
  options.num_threads = 1;
  const Plan plan = Plan::create(problem, options).value();
  std::vector<float> out(static_cast<size_t>(head.rows * head.head_dim_v), kNaN);
  std::vector<std::byte> memory(plan.workspace_bytes() + 64);
  void* workspace = memory.data();
  size_t space = memory.size();
  Args args;
  args.q = TensorView::contiguous(head.q.data(), DType::fp32, {1, head.rows, 1, head.head_dim});
  args.k = TensorView::contiguous(head.k.data(), DType::fp32, {1, head.keys, 1, head.head_dim});
  args.v = TensorView::contiguous(head.v.data(), DType::fp32, {1, head.keys, 1, head.head_dim_v});
  args.out = TensorView::contiguous(out.data(), DType::fp32, {1, head.rows, 1, head.head_dim_v});
  if (head.sink != nullptr) args.sink = TensorView::contiguous(head.sink, DType::fp32, {1});
  args.workspace = std::align(64, plan.workspace_bytes(), workspace, space);
  args.workspace_bytes = plan.workspace_bytes();
  const Status status = plan.run(args);
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

// Root mean square and maximum of |out - float64| / (sum_j p_j |v_jc| eps), over every element.
struct Errors {
  double rms = 0, worst = 0;
};

Errors errors_of(const Head& head, const std::vector<float>& out) {
  Errors errors;
  for (int64_t i = 0; i < head.rows; ++i) {
    std::vector<double> weight(static_cast<size_t>(head.keys));
    double level = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t j = 0; j < head.keys; ++j) {
      double dot = 0;
      for (int64_t c = 0; c < head.head_dim; ++c)
        dot += double{head.q[i * head.head_dim + c]} * head.k[j * head.head_dim + c];
      weight[j] = dot * head.scale;
      level = std::max(level, weight[j]);
    }
    for (double& w : weight) sum += w = std::exp(w - level);
    for (int64_t c = 0; c < head.head_dim_v; ++c) {
      double value = 0, size = 0;
      for (int64_t j = 0; j < head.keys; ++j) {
        value += weight[j] / sum * head.v[j * head.head_dim_v + c];
        size += weight[j] / sum * std::abs(head.v[j * head.head_dim_v + c]);
      }
      const double error = std::abs(out[i * head.head_dim_v + c] - value) / (size * kEps);
      errors.worst = std::max(errors.worst, error);
      errors.rms += error * error;
    }
  }
  errors.rms = std::sqrt(errors.rms / static_cast<double>(head.rows * head.head_dim_v));
  return errors;
}

std::vector<float> normal(int64_t count, float size, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution(0, size);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = distribution(generator);
  return values;
}

// Three steps in fp32: what a plain computation gives.
std::vector<float> plain(const Head& head) {
  std::vector<float> out(static_cast<size_t>(head.rows * head.head_dim_v), 0.0f);
  std::vector<float> weight(static_cast<size_t>(head.keys));
  for (int64_t i = 0; i < head.rows; ++i) {
    float level = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64_t j = 0; j < head.keys; ++j) {
      float dot = 0;
      for (int64_t c = 0; c < head.head_dim; ++c)
        dot += head.q[i * head.head_dim + c] * head.k[j * head.head_dim + c];
      weight[j] = dot * head.scale;
      level = std::max(level, weight[j]);
    }
    for (float& w : weight) sum += w = std::exp(w - level);
    for (int64_t j = 0; j < head.keys; ++j)
      for (int64_t c = 0; c < head.head_dim_v; ++c)
        out[i * head.head_dim_v + c] += weight[j] / sum * head.v[j * head.head_dim_v + c];
  }
  return out;
}

class CpuAccuracy : public ::testing::TestWithParam<std::string> {};

std::vector<std::string> isas() {
  std::vector<std::string> names{"scalar"};
  const Device host = Device::host();
  for (const char* name : {"avx2", "avx512"}) {
    if (cpu::choose_isa(host, name).ok()) names.emplace_back(name);
  }
  return names;
}

// Scores 0 and x: out = exp(x) / (1 + exp(x)), alone in its column, so exp's own error shows.
TEST_P(CpuAccuracy, WeightsFarBelowTheMaximum) {
  for (int step = 0; step <= 340; ++step) {
    const float x = -0.25f * static_cast<float>(step);
    Head head{{1}, {0, x}, {0, 1}, 1, 2, 1, 1};
    // Two roundings of exp's polynomial, one of the division, one of the product.
    EXPECT_LE(errors_of(head, forward(head, GetParam())).worst, 3) << "score " << x;
  }
}

// One chain of 512 products would be off by about 194 epsilons here, a library's dot by 52.
TEST_P(CpuAccuracy, LongDotProductsAreSummedInShortChains) {
  double squares = 0;
  constexpr int kDraws = 20;
  for (uint32_t draw = 0; draw < kDraws; ++draw) {
    Head head{normal(512, 3, 3 * draw),
              normal(512 * 512, 3, 3 * draw + 1),
              normal(512 * 8, 1, 3 * draw + 2),
              1,
              512,
              512,
              8,
              1.0f / std::sqrt(512.0f)};
    squares += std::pow(errors_of(head, forward(head, GetParam())).rms, 2);
  }
  EXPECT_LE(std::sqrt(squares / kDraws), 12);
}

// Equal weights and one value per column: every partial sum rounds the same way.
TEST_P(CpuAccuracy, LongSumsOfValuesAreSummedInBlocks) {
  constexpr int64_t kKeys = 1024, kColumns = 64;
  Head head{std::vector<float>(8, 0.0f),
            std::vector<float>(kKeys * 8, 0.0f),
            std::vector<float>(kKeys * kColumns),
            1,
            kKeys,
            8,
            kColumns};
  for (int64_t j = 0; j < kKeys; ++j)
    for (int64_t c = 0; c < kColumns; ++c)
      head.v[j * kColumns + c] = 0.5f + 0.5f * static_cast<float>(c * 37 % 64) / 63.7f;
  // A chain of n equal terms is off by at most n / 2 epsilons, here n = 256 keys of a block.
  EXPECT_LE(errors_of(head, forward(head, GetParam())).worst, 64);
}

// On tame data no outlier hides a fault that every element shares.
TEST_P(CpuAccuracy, TypicalErrorsAreNoLargerThanThoseOfAPlainComputation) {
  for (const int64_t head_dim : {16, 64, 128}) {
    constexpr int64_t kRows = 70, kKeys = 600;
    const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    Head head{normal(kRows * head_dim, 1, 1),
              normal(kKeys * head_dim, 1, 2),
              normal(kKeys * head_dim, 1, 3),
              kRows,
              kKeys,
              head_dim,
              head_dim,
              scale};
    EXPECT_LE(errors_of(head, forward(head, GetParam())).rms, errors_of(head, plain(head)).rms)
        << "head_dim " << head_dim;
  }
}

TEST_P(CpuAccuracy, AVisibleNaNIsSeenBehindASinkThatTakesAllWeight) {
  float sink = 200;
  Head head{std::vector<float>(8, 0.0f),
            std::vector<float>(16, 0.0f),
            std::vector<float>(16, 1.0f),
            1,
            2,
            8,
            8};
  head.sink = &sink;
  head.v[3] = kNaN;
  const std::vector<float> out = forward(head, GetParam());
  for (size_t c = 0; c < 8; ++c) EXPECT_EQ(std::isnan(out[c]), c == 3) << c;
}

INSTANTIATE_TEST_SUITE_P(Isas, CpuAccuracy, ::testing::ValuesIn(isas()),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace sirdar::test
