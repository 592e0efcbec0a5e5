// The derivative by the score as an expression of its own has the values of the one that is taken
// point by point.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "expression/slope.h"
#include "support/random_expression.h"

namespace sirdar::testing {
namespace {

using expression::Kind;
using expression::Point;
using expression::Program;

void expect_same(const Program& program, const expression::Bindings& bindings, const Point& point) {
  const double expected = program.derivative(bindings, point, 0, {});
  const double actual = expression::slope_of(program).value(bindings, point);
  const bool is_same = actual == expected || (std::isnan(actual) && std::isnan(expected)) ||
                       std::abs(actual - expected) <= 1e-12 * std::abs(expected);
  RC_LOG() << "score " << point.score << " q " << point.q << " k " << point.k << ": " << actual
           << " instead of " << expected << std::endl;
  RC_ASSERT(is_same);
}

RC_GTEST_PROP(ExpressionSlope, IsTheDerivative, ()) {
  constexpr double kScores[] = {0.0, 1.0, -1.5, 0.25, 20.0, -30.0, 1e-3, INFINITY, NAN};
  const ExpressionWorld world;
  const Program program = random_program(world, Kind::score_mod);
  for (const double score : kScores) {
    const Point point{score, below(3), below(3), below(9), below(9), below(9)};
    expect_same(program, world.bindings(), point);
  }
}

TEST(ExpressionSlope, OfCommonScores) {
  for (const char* text : {"score", "-score", "3", "cap * tanh(score / cap)", "score * score",
                           "1 / score", "sqrt(abs(score))", "min(score, 2.0)", "max(2.0, score)",
                           "score > 0 ? log(score) : 0.0", "exp2(sigmoid(score)) - exp(-score)"}) {
    const Program program =
        Program::parse(Kind::score_mod, text, {}, std::vector<std::string>{"cap"}).value();
    const std::vector<double> cap{1.5};
    for (const double score : {-2.5, -1.0, 0.0, 0.5, 2.0, 7.0}) {
      const double expected = program.derivative({{}, cap}, {.score = score}, 0, {});
      const double actual = expression::slope_of(program).value({{}, cap}, {.score = score});
      EXPECT_TRUE(actual == expected || (std::isnan(actual) && std::isnan(expected)))
          << text << " at " << score << ": " << actual << " " << expected;
    }
  }
}

}  // namespace
}  // namespace sirdar::testing
