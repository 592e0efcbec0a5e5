// Text from C++ operators: the text that a tree of the same operators prints.
#include <sirdar/expression.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "expression/names.h"

namespace sirdar::expressions {
namespace {

using expression::Kind;

int precedence_of(std::string_view symbol) {
  const auto table = expression::binary_operators();
  return std::ranges::find(table, symbol, &expression::BinaryOperator::symbol)->precedence;
}

Status bad(std::string_view argument, std::string message) {
  return {StatusCode::invalid_argument, std::move(message), std::string(argument)};
}

Status set(Problem& problem, Kind kind, const Expression& value) {
  if (!value.status().ok()) return value.status();
  Problem changed = problem;
  (kind == Kind::score_mod ? changed.score_mod : changed.mask_mod) = value.str();
  for (const ExpressionTensor& tensor : value.tensors()) {
    const auto known = std::ranges::find(changed.tensors, tensor.name, &ExpressionTensor::name);
    if (known == changed.tensors.end()) {
      changed.tensors.push_back(tensor);
    } else if (!(*known == tensor)) {
      return bad("tensors", fmt::format("tensors: '{}' is declared twice with different dtypes, "
                                        "ranks or gradients; declare it once.",
                                        tensor.name));
    }
  }
  for (const std::string& scalar : value.scalars()) {
    if (std::ranges::find(changed.scalars, scalar) == changed.scalars.end())
      changed.scalars.push_back(scalar);
  }
  Status status = expression::check_names(changed.tensors, changed.scalars);
  if (status.ok())
    status =
        expression::Program::parse(kind, value.str(), changed.tensors, changed.scalars).status();
  if (status.ok()) problem = std::move(changed);
  return status;
}

}  // namespace

// Texts that are too long stop growing, so that no chain of operators can fill the memory.
void Expression::append(std::string_view text) {
  if (!status_.ok()) return;
  if (text_.size() + text.size() > expression::kMaxTextBytes) {
    return fail(fmt::format("expression: the text is longer than {} bytes; write a shorter one.",
                            expression::kMaxTextBytes));
  }
  text_ += text;
}

void Expression::fail(std::string message) {
  if (status_.ok()) status_ = bad("expression", std::move(message));
}

void Expression::append(const Expression& operand, int least_precedence) {
  if (status_.ok()) status_ = operand.status_;
  const bool needs_parentheses = operand.precedence_ < least_precedence;
  if (needs_parentheses) append("(");
  append(operand.text_);
  if (needs_parentheses) append(")");
  for (const ExpressionTensor& tensor : operand.tensors_) {
    const auto known = std::ranges::find(tensors_, tensor.name, &ExpressionTensor::name);
    if (known == tensors_.end()) {
      tensors_.push_back(tensor);
    } else if (!(*known == tensor)) {
      fail(
          fmt::format("tensors: '{}' is declared twice with different dtypes, ranks or gradients; "
                      "declare it once.",
                      tensor.name));
    }
  }
  for (const std::string& scalar : operand.scalars_) {
    if (std::ranges::find(scalars_, scalar) == scalars_.end()) scalars_.push_back(scalar);
  }
}

void Expression::append_list(std::string_view before, const std::vector<Expression>& list,
                             std::string_view after) {
  append(before);
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0) append(", ");
    append(list[i], expression::kSelectPrecedence);
  }
  append(after);
  precedence_ = expression::kPrimaryPrecedence;
}

Expression::Expression(const Scalar& scalar) : Expression(of_name(scalar.name)) {
  scalars_.push_back(scalar.name);
}

Expression::Expression(bool value) : Expression(of_name(value ? "true" : "false")) {}

Expression::Expression(float value) {
  if (std::isnan(value)) fail("expression: a number is NaN; use one that is not.");
  const float size = std::fabs(value);
  std::string text = std::isinf(size) ? "inf" : fmt::format("{}", size);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  const bool is_negative = std::signbit(value);
  append(is_negative ? "-" + text : text);
  precedence_ = is_negative ? expression::kUnaryPrecedence : expression::kPrimaryPrecedence;
}

Expression Expression::of_integer(int64_t value, bool fits) {
  if (!fits) {
    Expression result;
    result.fail("expression: an int does not fit into 32 bits; use a smaller one, or a float.");
    return result;
  }
  // Its size alone would not fit.
  if (value == std::numeric_limits<int32_t>::min()) return Expression(value + 1) - Expression(1);
  Expression result = of_name(fmt::format("{}", std::abs(value)));
  return value < 0 ? unary("-", result) : result;
}

Expression Expression::of_name(std::string_view name) {
  Expression result;
  result.append(name);
  result.precedence_ = expression::kPrimaryPrecedence;
  return result;
}

Expression Expression::unary(std::string_view symbol, const Expression& x) {
  Expression result;
  result.append(symbol);
  result.append(x, expression::kUnaryPrecedence);
  result.precedence_ = expression::kUnaryPrecedence;
  return result;
}

Expression Expression::binary(std::string_view symbol, const Expression& x, const Expression& y) {
  Expression result;
  result.precedence_ = precedence_of(symbol);
  result.append(x, result.precedence_);
  result.append(fmt::format(" {} ", symbol));
  result.append(y, result.precedence_ + 1);
  return result;
}

Expression Expression::call(std::string_view function, const std::vector<Expression>& list) {
  Expression result;
  result.append_list(fmt::format("{}(", function), list, ")");
  return result;
}

Expression Expression::element(const ExpressionTensor& tensor,
                               const std::vector<Expression>& indices) {
  Expression result;
  result.tensors_.push_back(tensor);
  result.append_list(tensor.name + "[", indices, "]");
  return result;
}

Expression Expression::chosen(const Expression& condition, const Expression& x,
                              const Expression& y) {
  Expression result;
  result.append(condition, expression::kSelectPrecedence + 1);
  result.append(" ? ");
  result.append(x, expression::kSelectPrecedence);
  result.append(" : ");
  result.append(y, expression::kSelectPrecedence);
  result.precedence_ = expression::kSelectPrecedence;
  return result;
}

Status set_score_mod(Problem& problem, const Expression& value) {
  return set(problem, Kind::score_mod, value);
}

Status set_mask_mod(Problem& problem, const Expression& value) {
  return set(problem, Kind::mask_mod, value);
}

}  // namespace sirdar::expressions
