// Any tree, built again by the C++ operators, has the text that the tree prints.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <sirdar/expression.hpp>

#include "expression/names.h"
#include "support/random_expression.h"

namespace sirdar::testing {
namespace {

using expression::Node;
using expression::Op;
using expressions::Expression;

Expression rebuilt(const Node& node, const expression::Program::Tree& tree,
                   const ExpressionWorld& world, const std::vector<Expression>& known) {
  std::vector<Expression> operands;
  for (int i = 0; i < node.num_operands; ++i) operands.push_back(known[node.operands[i]]);
  const std::string_view symbol = expression::symbol_of(node.op);
  switch (node.op) {
    case Op::literal:
      if (node.type == expression::Type::boolean) return Expression(node.integer != 0);
      return node.type == expression::Type::real ? Expression(node.real) : Expression(node.integer);
    case Op::scalar:
      return expressions::Scalar{tree.scalars[node.integer]};
    case Op::element:
      return Expression::element(world.tensors[node.integer], operands);
    case Op::to_real:
      return operands[0];
    case Op::select:
      return expressions::select(operands[0], operands[1], operands[2]);
    default:
      break;
  }
  for (const expression::Variable& variable : expression::variables())
    if (variable.op == node.op) return expressions::Name{variable.name};
  if (node.op == Op::negate || node.op == Op::logical_not)
    return Expression::unary(symbol, operands[0]);
  for (const expression::BinaryOperator& row : expression::binary_operators())
    if (row.op == node.op) return Expression::binary(symbol, operands[0], operands[1]);
  return Expression::call(symbol, operands);
}

RC_GTEST_PROP(ExpressionBuild, PrintsWhatTheTreePrints, ()) {
  const ExpressionWorld world;
  const auto kind = below(2) == 0 ? expression::Kind::score_mod : expression::Kind::mask_mod;
  const expression::Program program = random_program(world, kind);
  std::vector<Expression> known;
  for (const Node& node : program.tree().nodes)
    known.push_back(rebuilt(node, program.tree(), world, known));
  RC_ASSERT(known.back().status().ok());
  RC_ASSERT(known.back().str() == program.str());
  RC_ASSERT(world.parse(kind, known.back().str()) == program);
}

}  // namespace
}  // namespace sirdar::testing
