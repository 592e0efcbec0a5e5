#include "expression/types.h"

#include <fmt/format.h>

#include <utility>

#include "expression/arithmetic.h"
#include "expression/names.h"

namespace sirdar::expression {
namespace {

constexpr bool is_comparison(Op op) { return op >= Op::less && op <= Op::not_equal; }
constexpr bool is_function(Op op) {
  return op == Op::min || op == Op::max || (op >= Op::abs && op <= Op::sqrt);
}

// "the left side of '+'", "argument 2 of 'max'".
std::string place(Op op, int i) {
  if (is_function(op)) return fmt::format("argument {} of '{}'", i + 1, symbol_of(op));
  return fmt::format("the {} side of '{}'", i == 0 ? "left" : "right", symbol_of(op));
}

constexpr std::string_view kToNumber = "; a bool becomes a number by 'condition ? 1 : 0'";

}  // namespace

Operand TreeBuilder::fail(int column, std::string_view message) {
  if (!failed()) {
    const std::string_view argument = name_of(tree_.kind);
    status_ = {StatusCode::invalid_argument,
               fmt::format("{}: column {}: {}", argument, column, message), std::string(argument)};
  }
  return {};
}

bool TreeBuilder::has_room(int column) {
  if (tree_.nodes.size() < kMaxNodes) return true;
  fail(column,
       fmt::format("the expression has more than {} operators and operands; move part of it "
                   "into a tensor",
                   kMaxNodes));
  return false;
}

Operand TreeBuilder::leaf(const Node& node, int column) {
  if (failed() || !has_room(column)) return {};
  tree_.nodes.push_back(node);
  note_constant(node);
  return {static_cast<int32_t>(tree_.nodes.size()) - 1, column};
}

Operand TreeBuilder::append(Op op, Type type, std::initializer_list<Operand> operands, int column) {
  if (!has_room(std::data(operands)[operands.size() - 1].column)) return {};
  Node node;
  node.op = op;
  node.type = type;
  for (const Operand& operand : operands) node.operands[node.num_operands++] = operand.node;
  return leaf(node, column);
}

// Integer arithmetic on literals is done here, so that a divisor or an index that can only be wrong
// is refused. The tree keeps what was written.
void TreeBuilder::note_constant(const Node& node) {
  std::optional<int32_t> constant;
  const auto operand = [&](int i) { return constants_[node.operands[i]]; };
  if (node.type == Type::integer) {
    const bool is_binary = node.op >= Op::add && node.op <= Op::max;
    if (node.op == Op::literal) {
      constant = node.integer;
    } else if (is_binary && operand(0) && operand(1)) {
      constant = apply(node.op, *operand(0), *operand(1));
    } else if ((node.op == Op::negate || node.op == Op::abs) && operand(0)) {
      constant = apply(node.op, *operand(0));
    }
  }
  constants_.push_back(constant);
}

bool TreeBuilder::require(Operand operand, Type type, std::string_view what) {
  if (failed()) return false;
  const Type found = type_of(operand);
  if (found == type) return true;
  const std::string_view hint =
      type == Type::boolean ? "; compare it, as in 'x != 0'"
      : found == Type::boolean
          ? kToNumber
          : "; scalars, '/' with an fp32 side and functions such as floor are fp32";
  fail(operand.column,
       fmt::format("{} is {} and must be {}{}", what, name_of(found), name_of(type), hint));
  return false;
}

bool TreeBuilder::require_number(Op op, Operand operand, std::string_view what) {
  if (failed()) return false;
  if (type_of(operand) != Type::boolean) return true;
  const bool is_chain = is_comparison(op) && is_comparison(tree_.nodes[operand.node].op);
  fail(operand.column,
       fmt::format("{} is bool and must be int or fp32{}", what,
                   is_chain ? "; comparisons do not chain: write 'a < b && b < c'" : kToNumber));
  return false;
}

Operand TreeBuilder::to_real(Operand operand) {
  if (failed() || type_of(operand) == Type::real) return operand;
  return append(Op::to_real, Type::real, {operand}, operand.column);
}

bool TreeBuilder::unify(Operand& left, Operand& right) {
  if (type_of(left) != type_of(right)) {
    left = to_real(left);
    right = to_real(right);
  }
  return !failed();
}

Operand TreeBuilder::unary(Op op, Operand operand, int column) {
  const std::string what = is_function(op) ? fmt::format("the argument of '{}'", symbol_of(op))
                                           : fmt::format("the operand of '{}'", symbol_of(op));
  if (op == Op::logical_not) {
    if (!require(operand, Type::boolean, what)) return {};
    return append(op, Type::boolean, {operand}, column);
  }
  if (!require_number(op, operand, what)) return {};
  if (op != Op::negate && op != Op::abs) operand = to_real(operand);
  if (failed()) return {};
  return append(op, type_of(operand), {operand}, column);
}

Operand TreeBuilder::binary(Op op, Operand left, Operand right) {
  if (failed()) return {};
  const int column = left.column;
  if (op == Op::logical_and || op == Op::logical_or) {
    if (!require(left, Type::boolean, place(op, 0))) return {};
    if (!require(right, Type::boolean, place(op, 1))) return {};
    return append(op, Type::boolean, {left, right}, column);
  }
  const bool is_equality = op == Op::equal || op == Op::not_equal;
  const bool both_bool = type_of(left) == Type::boolean && type_of(right) == Type::boolean;
  if (is_equality && both_bool) return append(op, Type::boolean, {left, right}, column);
  if (op == Op::remainder) {
    if (!require(left, Type::integer, place(op, 0))) return {};
    if (!require(right, Type::integer, place(op, 1))) return {};
  }
  if (!require_number(op, left, place(op, 0)) || !require_number(op, right, place(op, 1)))
    return {};
  if (!unify(left, right)) return {};
  const Type type = type_of(left);
  if ((op == Op::divide || op == Op::remainder) && type == Type::integer &&
      constants_[right.node] == 0) {
    return fail(right.column, fmt::format("the right side of '{}' is always 0; an int cannot be "
                                          "divided by 0",
                                          symbol_of(op)));
  }
  return append(op, is_comparison(op) ? Type::boolean : type, {left, right}, column);
}

Operand TreeBuilder::select(Operand condition, Operand if_true, Operand if_false) {
  if (!require(condition, Type::boolean, "the condition of '?:'")) return {};
  const Type first = type_of(if_true), second = type_of(if_false);
  if ((first == Type::boolean) != (second == Type::boolean)) {
    return fail(if_false.column,
                fmt::format("the values of '?:' are {} and {}; both must be numbers "
                            "or both bool",
                            name_of(first), name_of(second)));
  }
  if (!unify(if_true, if_false)) return {};
  return append(Op::select, type_of(if_true), {condition, if_true, if_false}, condition.column);
}

Operand TreeBuilder::element(const ExpressionTensor& tensor, int32_t place_in_list,
                             std::span<const Operand> indices, int column) {
  Node node;
  node.op = Op::element;
  node.type = tensor.dtype == DType::fp32    ? Type::real
              : tensor.dtype == DType::int32 ? Type::integer
                                             : Type::boolean;
  node.integer = place_in_list;
  for (const Operand& index : indices) {
    const std::string what = fmt::format("index {} of '{}'", node.num_operands, tensor.name);
    if (!require(index, Type::integer, what)) return {};
    const std::optional<int32_t> constant = constants_[index.node];
    if (constant && *constant < 0) {
      return fail(index.column, fmt::format("{} is {}; an axis starts at 0", what, *constant));
    }
    node.operands[node.num_operands++] = index.node;
  }
  return leaf(node, column);
}

void TreeBuilder::finish(Operand value) {
  if (failed()) return;
  const Type found = type_of(value);
  if (tree_.kind == Kind::mask_mod && found != Type::boolean) {
    fail(value.column,
         fmt::format("the value is {} and a mask_mod must be bool: true where the key is "
                     "visible",
                     name_of(found)));
  } else if (tree_.kind == Kind::score_mod && found == Type::boolean) {
    fail(value.column,
         "the value is bool and a score_mod must be a number; write "
         "'condition ? score : -inf'");
  } else if (tree_.kind == Kind::score_mod) {
    to_real(value);
  }
}

}  // namespace sirdar::expression
