// The words of the language: positions, functions, operators; and what a list of names may hold.
#pragma once

#include "expression/ast.h"

namespace sirdar::expression {

struct Function {
  std::string_view name;
  Op op;
  int num_arguments;
};
std::span<const Function> functions();

struct Variable {
  std::string_view name;
  Op op;
};
std::span<const Variable> variables();  // score first

// Two-operand operators with C's precedence; larger binds tighter.
struct BinaryOperator {
  std::string_view symbol;
  Op op;
  int precedence;
};
std::span<const BinaryOperator> binary_operators();
inline constexpr int kSelectPrecedence = 0, kUnaryPrecedence = 7, kPrimaryPrecedence = 8;

// How an operator or function is written, for messages: "'&&'", "'max'".
std::string_view symbol_of(Op op);

// Every rule about the names, dtypes and ranks that a problem declares.
Status check_names(std::span<const ExpressionTensor> tensors, std::span<const std::string> scalars);

}  // namespace sirdar::expression
