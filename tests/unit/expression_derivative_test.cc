// Derivatives against central differences and, at kinks, against the documented conventions.
#include <gtest/gtest.h>

#include <cmath>

#include "expression/expression.h"

namespace sirdar::expression {
namespace {

struct Gradient {
  double score = 0;
  std::vector<double> table, rel;
};

class ExpressionDerivative : public testing::Test {
 protected:
  static constexpr Point kPoint{.score = 0.7, .b = 1, .h = 1, .q = 2, .k = 3, .q_pos = 4};

  Program parse(std::string_view text) {
    return Program::parse(Kind::score_mod, text, tensors_, names_).value();
  }
  Gradient gradient(std::string_view text, double upstream = 1, const Point& point = kPoint) {
    Gradient result{0, std::vector<double>(4), std::vector<double>(4)};
    double* const grads[] = {result.table.data(), result.rel.data()};
    result.score = parse(text).derivative({views_, scalars_}, point, upstream, grads);
    return result;
  }
  double value(const Program& program, double score) {
    Point point = kPoint;
    point.score = score;
    return program.value({views_, scalars_}, point);
  }
  // Central differences, whose own error is about step squared.
  void expect_matches_differences(std::string_view text) {
    SCOPED_TRACE(text);
    const Program program = parse(text);
    const double upstream = -1.75;
    const Gradient exact = gradient(text, upstream);
    const double step = 0x1p-13;
    const double by_score =
        (value(program, kPoint.score + step) - value(program, kPoint.score - step)) / (2 * step);
    EXPECT_NEAR(exact.score, upstream * by_score, 1e-6 * (1 + std::fabs(by_score)));
    expect_matches(program, table_, exact.table, upstream, step, {3, 2, 1, 0});
    expect_matches(program, rel_, exact.rel, upstream, step, {0, 1, 2, 3});
  }
  // `places[i]` is where row-major element i lies in memory.
  void expect_matches(const Program& program, std::vector<float>& memory,
                      const std::vector<double>& exact, double upstream, double step,
                      const std::vector<int>& places) {
    for (size_t i = 0; i < exact.size(); ++i) {
      float& element = memory[places[i]];
      const float saved = element;
      element = saved + static_cast<float>(step);
      const double above_at = element, above = value(program, kPoint.score);
      element = saved - static_cast<float>(step);
      const double below_at = element, below = value(program, kPoint.score);
      element = saved;
      const double difference = (above - below) / (above_at - below_at);
      EXPECT_NEAR(exact[i], upstream * difference, 1e-6 * (1 + std::fabs(difference)))
          << "element " << i;
    }
  }

  // table is [2, 2] backwards in memory: element (i, j) lies at 3 - 2i - j.
  std::vector<float> table_{0.25f, 0.5f, -0.75f, 1.25f};
  std::vector<float> rel_{0.125f, -0.5f, 2.0f, 3.0f};
  std::vector<ExpressionTensor> tensors_{{"table", DType::fp32, 2, true},
                                         {"rel", DType::fp32, 1, true}};
  std::vector<TensorView> views_{
      TensorView::strided(table_.data() + 3, DType::fp32, {2, 2}, {-2, -1}),
      TensorView::contiguous(rel_.data(), DType::fp32, {4})};
  std::vector<std::string> names_{"cap"};
  std::vector<double> scalars_{3};
};

TEST_F(ExpressionDerivative, MatchesDifferences) {
  for (std::string_view text :
       {"score", "3", "-score", "cap * tanh(score / cap)", "score * score * score",
        "2 / (1 + score)", "score + rel[k - 1] * rel[k - 1]", "exp(score) - exp2(score)",
        "log(score) * sqrt(score)", "sigmoid(score * 3)",
        "score * table[b, 0] + table[b - 1, 1] / score",
        "min(score, table[0, 0]) + max(score, table[1, 1])", "abs(-score) + floor(score * 12)",
        "k > q ? score * rel[0] : rel[1]", "k < q ? score * rel[0] : exp(rel[1])",
        "table[1, 0] / (rel[2] + rel[2] * score)", "score + rel[k + 50]", "score * (q_pos - k)",
        "tanh(exp(score) * sigmoid(rel[3] - score)) / table[0, 1]"}) {
    expect_matches_differences(text);
  }
}

TEST_F(ExpressionDerivative, Kinks) {
  const auto at = [&](std::string_view text, double score) {
    Point point = kPoint;
    point.score = score;
    return gradient(text, 1, point).score;
  };
  EXPECT_EQ(at("abs(score)", 0), 0);
  EXPECT_EQ(at("floor(score)", 1), 0);
  EXPECT_EQ(at("min(score, 1)", 1), 1);  // a tie is the first operand's
  EXPECT_EQ(at("max(1, score)", 1), 0);
  EXPECT_EQ(at("score > 0 ? log(score) : 0.0", 0), 0);  // not 0 * inf
  EXPECT_EQ(at("score >= 1 ? 2 * score : 3 * score", 1), 2);
  EXPECT_EQ(at("sqrt(score)", 0), HUGE_VAL);
  EXPECT_EQ(at("0 * sqrt(score)", 0), 0);
  EXPECT_EQ(at("sqrt(floor(score))", 0.5), 0);
}

// 4 e^-2x and e^-x, but for what is smaller by as much again.
TEST_F(ExpressionDerivative, FarFromZeroIsExactToo) {
  const auto at = [&](std::string_view text, double score) {
    return gradient(text, 1, {.score = score}).score;
  };
  EXPECT_NEAR(at("tanh(score)", 20) / (4 * std::exp(-40)), 1, 1e-14);
  EXPECT_NEAR(at("tanh(score)", -20) / (4 * std::exp(-40)), 1, 1e-14);
  EXPECT_NEAR(at("sigmoid(score)", 40) / std::exp(-40), 1, 1e-14);
  EXPECT_NEAR(at("sigmoid(score)", -40) / std::exp(-40), 1, 1e-14);
}

TEST_F(ExpressionDerivative, ANanFromAboveReachesWhatTheValueDependsOn) {
  const double nan = std::nan("");
  const Gradient chosen = gradient("k < q ? score * rel[0] : rel[1]", nan);
  EXPECT_EQ(chosen.score, 0);
  EXPECT_EQ(chosen.rel[0], 0);
  EXPECT_TRUE(std::isnan(chosen.rel[1]));
  EXPECT_EQ(gradient("floor(score)", nan).score, 0);
  EXPECT_TRUE(std::isnan(gradient("score * 0", nan).score));
}

TEST_F(ExpressionDerivative, AddsToWhatIsThere) {
  std::vector<double> rel{1, 1, 1, 1};
  double* const grads[] = {nullptr, rel.data()};
  const Program program = parse("score * rel[2] + rel[2] + table[0, 0]");
  const double derivative = program.derivative({views_, scalars_}, kPoint, 2, grads);
  EXPECT_EQ(derivative, 4);
  EXPECT_EQ(rel, (std::vector<double>{1, 1, 1 + 2 * (kPoint.score + 1), 1}));
  EXPECT_EQ(program.derivative({views_, scalars_}, kPoint, 2, {}), 4);
}

TEST_F(ExpressionDerivative, NothingFlowsFromAnUpstreamOfZero) {
  EXPECT_EQ(gradient("score / (rel[0] - rel[0])", 0).rel, std::vector<double>(4));
}

}  // namespace
}  // namespace sirdar::expression
