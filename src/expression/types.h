// Builds a tree node by node and checks the types, whoever the caller: text today.
#pragma once

#include "expression/ast.h"

namespace sirdar::expression {

// A node under construction and where its text begins.
struct Operand {
  int32_t node = -1;
  int column = 1;
};

// The first error stays; after it every call returns an operand that must not be used.
class TreeBuilder {
 public:
  explicit TreeBuilder(Kind kind) { tree_.kind = kind; }

  Operand leaf(const Node& node, int column);
  Operand unary(Op op, Operand operand, int column);
  Operand binary(Op op, Operand left, Operand right);  // arguments of min and max too
  Operand select(Operand condition, Operand if_true, Operand if_false);
  Operand element(const ExpressionTensor& tensor, int32_t place, std::span<const Operand> indices,
                  int column);
  // Converts the last value to what the kind needs and hands the tree over.
  void finish(Operand value);

  Operand fail(int column, std::string_view message);
  bool failed() const { return !status_.ok(); }
  const Status& status() const { return status_; }
  Program::Tree& tree() { return tree_; }

 private:
  Type type_of(Operand operand) const { return tree_.nodes[operand.node].type; }
  Operand append(Op op, Type type, std::initializer_list<Operand> operands, int column);
  bool has_room(int column);
  void note_constant(const Node& node);
  Operand to_real(Operand operand);
  // Brings two numbers to one type; false after an error.
  bool unify(Operand& left, Operand& right);
  bool require(Operand operand, Type type, std::string_view what);
  bool require_number(Op op, Operand operand, std::string_view what);

  Program::Tree tree_;
  std::vector<std::optional<int32_t>> constants_;  // of int nodes whose value is known
  Status status_;
};

}  // namespace sirdar::expression
