// Derivatives as expressions of their own have the values of those that are taken point by point.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "expression/slope.h"
#include "support/random_expression.h"
#include "support/slopes.h"

namespace sirdar::testing {
namespace {

using expression::Kind;
using expression::Point;
using expression::Program;

RC_GTEST_PROP(ExpressionSlopes, AreTheDerivatives, ()) {
  constexpr double kScores[] = {0.0, 1.0, -1.5, 0.25, 20.0, -30.0, 1e-3, INFINITY, NAN};
  const ExpressionWorld world;
  const Program program = random_program(world, Kind::score_mod);
  for (const double score : kScores) {
    const Point point{score, below(3), below(3), below(9), below(9), below(9)};
    RC_LOG() << program.str() << " at score " << score << " q " << point.q << " k " << point.k
             << std::endl;
    RC_ASSERT(slopes_agree(program, world.bindings(), point));
  }
}

TEST(ExpressionSlopes, OfCommonScores) {
  for (const char* text : {"score", "-score", "3", "cap * tanh(score / cap)", "score * score",
                           "1 / score", "sqrt(abs(score))", "min(score, 2.0)", "max(2.0, score)",
                           "score > 0 ? log(score) : 0.0", "exp2(sigmoid(score)) - exp(-score)"}) {
    const Program program =
        Program::parse(Kind::score_mod, text, {}, std::vector<std::string>{"cap"}).value();
    const std::vector<double> cap{1.5};
    for (const double score : {-2.5, -1.0, 0.0, 0.5, 2.0, 7.0}) {
      const double expected = program.derivative({{}, cap}, {.score = score}, 1, {});
      const double actual = expression::slope_of(program).value({{}, cap}, {.score = score});
      EXPECT_TRUE(actual == expected || (std::isnan(actual) && std::isnan(expected)))
          << text << " at " << score << ": " << actual << " " << expected;
    }
  }
}

}  // namespace
}  // namespace sirdar::testing
