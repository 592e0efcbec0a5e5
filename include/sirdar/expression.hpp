// Score and mask modifications written in C++. The operators build the text that Problem::score_mod
// and mask_mod hold (docs/expressions.md); what is wrong in it is said when it is set.
//
//   using namespace sirdar::expressions;
//   const Tensor doc{"doc", sirdar::DType::int32, 2};
//   sirdar::Status status = set_mask_mod(problem, q_pos >= k && doc(b, q) == doc(b, k));
#pragma once

#include <sirdar/problem.hpp>

#include <concepts>
#include <utility>

namespace sirdar::expressions {

// A name of the language, or of a scalar of the call.
struct Name {
  std::string_view text;
};
inline constexpr Name score{"score"}, b{"b"}, h{"h"}, q{"q"}, k{"k"}, q_pos{"q_pos"};

// An fp32 number of the call, Args::scalars.
struct Scalar {
  std::string name;
};

class Expression {
 public:
  Expression(Name name);
  SIRDAR_API Expression(const Scalar& scalar);
  SIRDAR_API Expression(bool value);
  SIRDAR_API Expression(float value);  // fp32 of the language; inf and -inf too, but no NaN
  Expression(double value) : Expression(static_cast<float>(value)) {}
  // An int of the language: within 32 bits.
  template <std::integral T>
  Expression(T value) : Expression(of_integer(static_cast<int64_t>(value), fits(value))) {}

  // The text, or a part of it if status() is not ok.
  const std::string& str() const { return text_; }
  const std::vector<ExpressionTensor>& tensors() const { return tensors_; }
  const std::vector<std::string>& scalars() const { return scalars_; }
  // What can be said before types are known: numbers, lengths, two meanings of one name.
  const Status& status() const { return status_; }

  // How the operators and functions below are made.
  SIRDAR_API static Expression unary(std::string_view symbol, const Expression& x);
  SIRDAR_API static Expression binary(std::string_view symbol, const Expression& x,
                                      const Expression& y);
  SIRDAR_API static Expression call(std::string_view function, const std::vector<Expression>& list);
  SIRDAR_API static Expression element(const ExpressionTensor& tensor,
                                       const std::vector<Expression>& indices);
  SIRDAR_API static Expression chosen(const Expression& condition, const Expression& x,
                                      const Expression& y);

 private:
  Expression() = default;
  template <class T>
  static constexpr bool fits(T value) {
    return std::in_range<int32_t>(value);
  }
  SIRDAR_API static Expression of_integer(int64_t value, bool fits);
  SIRDAR_API static Expression of_name(std::string_view name);
  void append(std::string_view text);
  void append(const Expression& operand, int least_precedence);
  void append_list(std::string_view before, const std::vector<Expression>& list,
                   std::string_view after);
  void fail(std::string message);

  std::string text_;
  int precedence_ = 0;  // of the outermost operator; larger binds tighter
  std::vector<ExpressionTensor> tensors_;
  std::vector<std::string> scalars_;
  Status status_;
};

inline Expression::Expression(Name name) : Expression(of_name(name.text)) {}

// A tensor of the call, Args::tensors, read by `tensor(i)`, `tensor(i, j)`, one index per axis.
struct Tensor {
  std::string name;
  DType dtype = DType::fp32;  // fp32, int32 or boolean
  int rank = 1;               // 1..4
  bool needs_grad = false;    // backward: its gradient is an output

  template <class... Index>
  Expression operator()(const Index&... index) const {
    return Expression::element({name, dtype, rank, needs_grad}, {Expression(index)...});
  }
};

inline Expression operator-(const Expression& x) { return Expression::unary("-", x); }
inline Expression operator!(const Expression& x) { return Expression::unary("!", x); }

#define SIRDAR_BINARY(symbol)                                                   \
  inline Expression operator symbol(const Expression& x, const Expression& y) { \
    return Expression::binary(#symbol, x, y);                                   \
  }
SIRDAR_BINARY(+)
SIRDAR_BINARY(-)
SIRDAR_BINARY(*)
SIRDAR_BINARY(/)
SIRDAR_BINARY(%)
SIRDAR_BINARY(<)
SIRDAR_BINARY(<=)
SIRDAR_BINARY(>)
SIRDAR_BINARY(>=)
SIRDAR_BINARY(==)
SIRDAR_BINARY(!=)
SIRDAR_BINARY(&&)
SIRDAR_BINARY(||)
#undef SIRDAR_BINARY

#define SIRDAR_UNARY(name) \
  inline Expression name(const Expression& x) { return Expression::call(#name, {x}); }
SIRDAR_UNARY(abs)
SIRDAR_UNARY(floor)
SIRDAR_UNARY(exp)
SIRDAR_UNARY(exp2)
SIRDAR_UNARY(log)
SIRDAR_UNARY(tanh)
SIRDAR_UNARY(sigmoid)
SIRDAR_UNARY(sqrt)
#undef SIRDAR_UNARY
inline Expression min(const Expression& x, const Expression& y) {
  return Expression::call("min", {x, y});
}
inline Expression max(const Expression& x, const Expression& y) {
  return Expression::call("max", {x, y});
}
// condition ? x : y
inline Expression select(const Expression& condition, const Expression& x, const Expression& y) {
  return Expression::chosen(condition, x, y);
}

// Writes the text into the problem and adds the tensors and scalars that it reads. What is wrong
// with it is told here, as Problem::validate() would, and the problem is then left as it was.
SIRDAR_API Status set_score_mod(Problem& problem, const Expression& value);
SIRDAR_API Status set_mask_mod(Problem& problem, const Expression& value);

}  // namespace sirdar::expressions
