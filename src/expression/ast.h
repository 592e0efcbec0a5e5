// The typed tree of an expression, flat: operands stand before the operator that uses them and the
// last node is the value, so every walk is a loop and no text can exhaust the stack.
#pragma once

#include "expression/expression.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace sirdar::expression {

enum class Type : uint8_t { integer, real, boolean };  // int, fp32, bool of the language

enum class Op : uint8_t {
  // leaves
  literal,
  score,
  b,
  h,
  q,
  k,
  q_pos,
  scalar,
  element,
  // one operand
  to_real,
  negate,
  logical_not,
  abs,
  floor,
  exp,
  exp2,
  log,
  tanh,
  sigmoid,
  sqrt,
  // two numbers of one type, a number of that type
  add,
  subtract,
  multiply,
  divide,
  remainder,
  min,
  max,
  // two values of one type, a bool
  less,
  less_equal,
  greater,
  greater_equal,
  equal,
  not_equal,
  // bools
  logical_and,
  logical_or,
  // operands: condition, value where true, value where false
  select,
};

inline constexpr int kMaxNodes = 4096;
inline constexpr int kMaxDepth = 256;
inline constexpr size_t kMaxTextBytes = 16 << 10;
inline constexpr size_t kMaxNameBytes = 64;

struct Node {
  Op op = Op::literal;
  Type type = Type::integer;
  int8_t num_operands = 0;            // of an element: its indices, one per axis
  std::array<int32_t, 4> operands{};  // places in Tree::nodes
  int32_t integer = 0;  // literal int or bool; place of a scalar or tensor in its list
  double real = 0;      // literal fp32: a float's exact value

  bool operator==(const Node&) const = default;
};

struct Program::Tree {
  Kind kind = Kind::score_mod;
  std::vector<Node> nodes;
  std::vector<std::string> tensors, scalars;  // names, in the order of Bindings

  const Node& operand(const Node& node, int i) const { return nodes[node.operands[i]]; }
  bool operator==(const Tree&) const = default;
};

// One computed value; the node's type says which member is meant.
union Slot {
  int32_t integer;
  double real;
  bool boolean;
};

// Computes every node at one point into values[0 .. nodes.size()).
void evaluate(const Program::Tree& tree, const Bindings& bindings, const Point& point,
              Slot* values);

// The index on one axis of an element node, moved into [0, size) if it lies outside.
constexpr int64_t clamp_index(int32_t index, int64_t size) {
  return index < 0 ? 0 : index < size ? index : size - 1;
}

std::string_view name_of(Kind kind);  // "score_mod"
std::string_view name_of(Type type);  // "int", "fp32", "bool"

}  // namespace sirdar::expression
