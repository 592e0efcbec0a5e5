// Hand-computed values of expressions.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "expression/expression.h"

namespace sirdar::expression {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

class ExpressionValue : public testing::Test {
 protected:
  double value(std::string_view text, const Point& point = {}) {
    return parse(Kind::score_mod, text).value({views_, scalars_}, point);
  }
  bool allows(std::string_view text, const Point& point = {}) {
    return parse(Kind::mask_mod, text).allows({views_, scalars_}, point);
  }
  Program parse(Kind kind, std::string_view text) {
    return Program::parse(kind, text, tensors_, names_).value();
  }
  Bindings bindings() const { return {views_, scalars_}; }

  std::vector<int32_t> doc_{7, 7, 8, 9, 5, 6};           // [2, 3]
  std::vector<float> slope_{0.5f, -2.0f, 4.0f, 100.0f};  // [2], every second element
  std::vector<uint8_t> keep_{1, 0, 2};                   // [3]
  std::vector<ExpressionTensor> tensors_{{"doc", DType::int32, 2},
                                         {"slope", DType::fp32, 1},
                                         {"keep", DType::boolean, 1},
                                         {"nothing", DType::fp32, 1}};
  std::vector<TensorView> views_{TensorView::contiguous(doc_.data(), DType::int32, {2, 3}),
                                 TensorView::strided(slope_.data(), DType::fp32, {2}, {2}),
                                 TensorView::contiguous(keep_.data(), DType::boolean, {3}),
                                 TensorView::contiguous(slope_.data(), DType::fp32, {0})};
  std::vector<std::string> names_{"cap", "tenth"};
  std::vector<double> scalars_{30, 0.1};
};

TEST_F(ExpressionValue, Precedence) {
  EXPECT_EQ(value("2 + 3 * 4"), 14);
  EXPECT_EQ(value("(2 + 3) * 4"), 20);
  EXPECT_EQ(value("20 - 5 - 3"), 12);
  EXPECT_EQ(value("48 / 4 / 3"), 4);
  EXPECT_EQ(value("-2 * 3 + 10 % 4"), -4);
  EXPECT_EQ(value("1 < 2 && 3 > 4 || 5 == 5 ? 6 : 7"), 6);
  EXPECT_EQ(value("1 < 2 && (3 > 4 || 5 != 5) ? 6 : 7"), 7);
  EXPECT_EQ(value("false ? 1 : true ? 2 : 3"), 2);
  EXPECT_TRUE(allows("1 < 2 == 4 >= 4"));
  EXPECT_TRUE(allows("!(1 > 2) && !false"));
}

TEST_F(ExpressionValue, NamesAreThePoint) {
  const Point point{.score = 1.5, .b = 2, .h = 3, .q = 5, .k = 7, .q_pos = 11};
  EXPECT_EQ(value("score", point), 1.5);
  EXPECT_EQ(value("b * 10000 + h * 1000 + q * 100 + k * 10 + q_pos", point), 23581);
}

TEST_F(ExpressionValue, IntegersTruncateAndWrap) {
  EXPECT_EQ(value("-7 / 2"), -3);
  EXPECT_EQ(value("-7 % 2"), -1);
  EXPECT_EQ(value("7 % -2"), 1);
  EXPECT_EQ(value("2147483647 + 1"), -2147483648.0);
  EXPECT_EQ(value("-2147483647 - 2"), 2147483647);
  EXPECT_EQ(value("65536 * 65536"), 0);
  EXPECT_EQ(value("(-2147483647 - 1) / -1"), -2147483648.0);
  EXPECT_EQ(value("(-2147483647 - 1) % -1"), 0);
  EXPECT_EQ(value("abs(-2147483647 - 1)"), -2147483648.0);
  EXPECT_EQ(value("-(-2147483647 - 1)"), -2147483648.0);
  EXPECT_EQ(value("q", {.q = (int64_t{1} << 32) + 5}), 5);
}

TEST_F(ExpressionValue, IntegerDivisionByZeroIsZero) {
  EXPECT_EQ(value("5 / k"), 0);
  EXPECT_EQ(value("5 % k"), 0);
  EXPECT_TRUE(allows("q / k == 0", {.q = 9}));
}

TEST_F(ExpressionValue, FloatsAreIeee) {
  EXPECT_EQ(value("1.0 / k"), kInf);
  EXPECT_EQ(value("-1 / score"), -kInf);
  EXPECT_TRUE(std::isnan(value("score / score")));
  EXPECT_TRUE(allows("!(0.0 / k == 0.0 / k)"));
  EXPECT_EQ(value("-inf"), -kInf);
  EXPECT_EQ(value("7 / 2.0"), 3.5);
}

TEST_F(ExpressionValue, FloatLiteralsAndScalarsAreFp32) {
  EXPECT_EQ(value("0.1"), static_cast<double>(0.1f));
  EXPECT_EQ(value("tenth"), static_cast<double>(0.1f));
  EXPECT_EQ(value("16777217 + 0.0"), 16777217);  // an int becomes a real exactly here
}

TEST_F(ExpressionValue, Functions) {
  EXPECT_EQ(value("min(3, 2) + max(3, 2.5)"), 5);
  EXPECT_EQ(value("abs(-3) + abs(-0.5)"), 3.5);
  EXPECT_EQ(value("floor(-1.5)"), -2);
  EXPECT_DOUBLE_EQ(value("exp(1)"), 2.718281828459045);
  EXPECT_EQ(value("exp2(-3)"), 0.125);
  EXPECT_DOUBLE_EQ(value("log(10)"), 2.302585092994046);
  EXPECT_DOUBLE_EQ(value("tanh(0.5)"), 0.46211715726000976);
  EXPECT_EQ(value("sigmoid(0)"), 0.5);
  EXPECT_DOUBLE_EQ(value("sigmoid(2)"), 0.8807970779778823);
  EXPECT_EQ(value("sigmoid(-1000)"), 0);
  EXPECT_EQ(value("sqrt(2.25)"), 1.5);
  EXPECT_TRUE(std::isnan(value("min(0.0 / k, 1)")));
  EXPECT_TRUE(std::isnan(value("max(1, 0.0 / k)")));
}

TEST_F(ExpressionValue, TensorsWithStrides) {
  EXPECT_EQ(value("slope[0]"), 0.5);
  EXPECT_EQ(value("slope[1]"), 4);
  EXPECT_EQ(value("doc[b, k]", {.b = 1, .k = 2}), 6);
  EXPECT_TRUE(allows("keep[k]", {.k = 2}));
  EXPECT_FALSE(allows("keep[k]", {.k = 1}));
  std::swap(views_[0].shape[0], views_[0].shape[1]);
  std::swap(views_[0].stride[0], views_[0].stride[1]);
  EXPECT_EQ(value("doc[k, b]", {.b = 1, .k = 2}), 6);
}

TEST_F(ExpressionValue, IndicesClampAndCanBeChecked) {
  EXPECT_EQ(value("slope[k]", {.k = 2}), 4);
  EXPECT_EQ(value("slope[k]", {.k = 1 << 30}), 4);
  EXPECT_EQ(value("slope[k - 5]"), 0.5);
  EXPECT_EQ(value("nothing[k]"), 0);
  EXPECT_TRUE(parse(Kind::score_mod, "slope[k]").check(bindings(), {.k = 1}).ok());
  const Status status = parse(Kind::score_mod, "doc[b, k - 9]").check(bindings(), {.b = 1, .k = 4});
  EXPECT_EQ(status.argument(), "score_mod");
  EXPECT_EQ(
      status.message(),
      "score_mod: index 1 of tensor 'doc' is -5 at b = 1, h = 0, q = 0, k = 4, and the axis has 3 "
      "entries; guard the read with a condition");
}

TEST_F(ExpressionValue, GuardedReadsAreNotChecked) {
  const auto is_fine = [&](Kind kind, std::string_view text) {
    return parse(kind, text).check(bindings(), {.k = 9}).ok();
  };
  EXPECT_TRUE(is_fine(Kind::score_mod, "k < 2 ? slope[k] : 0"));
  EXPECT_FALSE(is_fine(Kind::score_mod, "k < 2 ? 0 : slope[k]"));
  EXPECT_TRUE(is_fine(Kind::mask_mod, "k < 3 && keep[k]"));
  EXPECT_FALSE(is_fine(Kind::mask_mod, "k < 3 || keep[k]"));
  EXPECT_TRUE(is_fine(Kind::mask_mod, "k >= 3 || keep[k]"));
}

}  // namespace
}  // namespace sirdar::expression
