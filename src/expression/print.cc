// Tree to canonical text: one space around operators and after commas, no parentheses but those
// that the tree needs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "expression/names.h"

namespace sirdar::expression {
namespace {

int precedence_of(const Node& node) {
  if (node.op == Op::select) return kSelectPrecedence;
  if (node.op == Op::negate || node.op == Op::logical_not) return kUnaryPrecedence;
  const auto table = binary_operators();
  const auto row = std::ranges::find(table, node.op, &BinaryOperator::op);
  return row == table.end() ? kPrimaryPrecedence : row->precedence;
}

std::string print_literal(const Node& node) {
  if (node.type == Type::boolean) return node.integer ? "true" : "false";
  if (node.type == Type::integer) return fmt::format("{}", node.integer);
  if (std::isinf(node.real)) return "inf";
  std::string text = fmt::format("{}", static_cast<float>(node.real));
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

// Prints with a stack of its own: what is on top comes next.
class Printer {
 public:
  explicit Printer(const Program::Tree& tree) : tree_(tree) {}

  std::string run() {
    push(static_cast<int32_t>(tree_.nodes.size()) - 1, kSelectPrecedence);
    while (!pieces_.empty()) {
      const Piece piece = std::move(pieces_.back());
      pieces_.pop_back();
      if (piece.node < 0) {
        text_ += piece.text;
      } else {
        expand(tree_.nodes[piece.node], piece.least_precedence);
      }
    }
    return std::move(text_);
  }

 private:
  struct Piece {
    std::string text;
    int32_t node = -1;
    int least_precedence = 0;  // a node that binds less tightly gets parentheses
  };
  void push(std::string text) { pieces_.push_back({std::move(text)}); }
  void push(int32_t node, int least_precedence) { pieces_.push_back({{}, node, least_precedence}); }

  // Pushes in reverse: the last piece pushed is printed first.
  void expand(const Node& node, int least_precedence) {
    if (node.op == Op::to_real) return push(node.operands[0], least_precedence);
    const int precedence = precedence_of(node);
    const bool needs_parentheses = precedence < least_precedence;
    if (needs_parentheses) push(")");
    if (node.op == Op::select) {
      push(node.operands[2], kSelectPrecedence);
      push(" : ");
      push(node.operands[1], kSelectPrecedence);
      push(" ? ");
      push(node.operands[0], kSelectPrecedence + 1);
    } else if (precedence == kUnaryPrecedence) {
      push(node.operands[0], kUnaryPrecedence);
      push(std::string(symbol_of(node.op)));
    } else if (precedence < kPrimaryPrecedence) {
      push(node.operands[1], precedence + 1);
      push(fmt::format(" {} ", symbol_of(node.op)));
      push(node.operands[0], precedence);
    } else {
      expand_primary(node);
    }
    if (needs_parentheses) push("(");
  }

  void expand_primary(const Node& node) {
    const auto variable = std::ranges::find(variables(), node.op, &Variable::op);
    if (variable != variables().end()) return push(std::string(variable->name));
    if (node.op == Op::literal) return push(print_literal(node));
    if (node.op == Op::scalar) return push(tree_.scalars[node.integer]);
    const bool is_element = node.op == Op::element;
    push(is_element ? "]" : ")");
    for (int i = node.num_operands; i-- > 0;) {
      push(node.operands[i], kSelectPrecedence);
      if (i > 0) push(", ");
    }
    push(is_element ? tree_.tensors[node.integer] + "[" : fmt::format("{}(", symbol_of(node.op)));
  }

  const Program::Tree& tree_;
  std::vector<Piece> pieces_;
  std::string text_;
};

}  // namespace

std::string Program::str() const { return Printer(*tree_).run(); }

}  // namespace sirdar::expression
