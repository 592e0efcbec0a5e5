#include <fmt/format.h>

#include <cstring>

#include "expression/arithmetic.h"

namespace sirdar::expression {
namespace {

template <class T>
T load(const TensorView& view, int64_t offset) {
  T value;
  std::memcpy(&value, static_cast<const T*>(view.data) + offset, sizeof value);
  return value;
}

// An element of a tensor with an empty axis is 0: there is nothing to clamp to.
Slot read_element(const Node& node, const TensorView& view, const Slot* values) {
  int64_t offset = 0;
  bool is_empty = false;
  for (int axis = 0; axis < node.num_operands; ++axis) {
    is_empty = is_empty || view.shape[axis] <= 0;
    const int64_t index = clamp_index(values[node.operands[axis]].integer, view.shape[axis]);
    offset += index == 0 ? 0 : index * view.stride[axis];
  }
  switch (node.type) {
    case Type::integer:
      return {.integer = is_empty ? 0 : load<int32_t>(view, offset)};
    case Type::real:
      return {.real = is_empty ? 0.0 : load<float>(view, offset)};
    case Type::boolean:
      return {.boolean = !is_empty && load<uint8_t>(view, offset) != 0};
  }
  return {.integer = 0};
}

Slot read_literal(const Node& node) {
  switch (node.type) {
    case Type::integer:
      return {.integer = node.integer};
    case Type::real:
      return {.real = node.real};
    case Type::boolean:
      return {.boolean = node.integer != 0};
  }
  return {.integer = 0};
}

bool compare_slots(const Node& node, Type type, Slot a, Slot b) {
  switch (type) {
    case Type::integer:
      return compare(node.op, a.integer, b.integer);
    case Type::real:
      return compare(node.op, a.real, b.real);
    case Type::boolean:
      return compare(node.op, a.boolean, b.boolean);
  }
  return false;
}

Slot apply_operator(const Program::Tree& tree, const Node& node, const Slot* values) {
  const Slot a = values[node.operands[0]];
  const Slot b = values[node.operands[1]];  // of a node with one operand: any slot, not used
  switch (node.op) {
    case Op::to_real:
      return {.real = static_cast<double>(a.integer)};
    case Op::logical_not:
      return {.boolean = !a.boolean};
    case Op::logical_and:
      return {.boolean = a.boolean && b.boolean};
    case Op::logical_or:
      return {.boolean = a.boolean || b.boolean};
    case Op::select:
      return a.boolean ? b : values[node.operands[2]];
    case Op::add:
    case Op::subtract:
    case Op::multiply:
    case Op::divide:
    case Op::remainder:
    case Op::min:
    case Op::max:
      if (node.type == Type::integer) return {.integer = apply(node.op, a.integer, b.integer)};
      return {.real = apply(node.op, a.real, b.real)};
    case Op::less:
    case Op::less_equal:
    case Op::greater:
    case Op::greater_equal:
    case Op::equal:
    case Op::not_equal:
      return {.boolean = compare_slots(node, tree.operand(node, 0).type, a, b)};
    default:
      if (node.type == Type::integer) return {.integer = apply(node.op, a.integer)};
      return {.real = apply(node.op, a.real)};
  }
}

// The element nodes that the value at this point really depends on.
std::vector<char> needed_nodes(const Program::Tree& tree, const Slot* values) {
  std::vector<char> needed(tree.nodes.size(), 0);
  needed.back() = 1;
  for (size_t at = tree.nodes.size(); at-- > 0;) {
    if (!needed[at]) continue;
    const Node& node = tree.nodes[at];
    const bool chooses =
        node.op == Op::select || node.op == Op::logical_and || node.op == Op::logical_or;
    const bool first = chooses && values[node.operands[0]].boolean;
    for (int i = 0; i < node.num_operands; ++i) {
      const bool is_skipped = (node.op == Op::select && i == (first ? 2 : 1)) ||
                              (node.op == Op::logical_and && i == 1 && !first) ||
                              (node.op == Op::logical_or && i == 1 && first);
      if (!is_skipped) needed[node.operands[i]] = 1;
    }
  }
  return needed;
}

}  // namespace

void evaluate(const Program::Tree& tree, const Bindings& bindings, const Point& point,
              Slot* values) {
  for (size_t at = 0; at < tree.nodes.size(); ++at) {
    const Node& node = tree.nodes[at];
    switch (node.op) {
      case Op::literal:
        values[at] = read_literal(node);
        break;
      case Op::score:
        values[at].real = point.score;
        break;
      case Op::b:
        values[at].integer = wrap(point.b);
        break;
      case Op::h:
        values[at].integer = wrap(point.h);
        break;
      case Op::q:
        values[at].integer = wrap(point.q);
        break;
      case Op::k:
        values[at].integer = wrap(point.k);
        break;
      case Op::q_pos:
        values[at].integer = wrap(point.q_pos);
        break;
      case Op::scalar:
        values[at].real = static_cast<float>(bindings.scalars[node.integer]);
        break;
      case Op::element:
        values[at] = read_element(node, bindings.tensors[node.integer], values);
        break;
      default:
        values[at] = apply_operator(tree, node, values);
        break;
    }
  }
}

double Program::value(const Bindings& bindings, const Point& point) const {
  std::array<Slot, kMaxNodes> values;
  evaluate(*tree_, bindings, point, values.data());
  return values[tree_->nodes.size() - 1].real;
}

bool Program::allows(const Bindings& bindings, const Point& point) const {
  std::array<Slot, kMaxNodes> values;
  evaluate(*tree_, bindings, point, values.data());
  return values[tree_->nodes.size() - 1].boolean;
}

Status Program::check(const Bindings& bindings, const Point& point) const {
  std::vector<Slot> values(tree_->nodes.size());
  evaluate(*tree_, bindings, point, values.data());
  const std::vector<char> needed = needed_nodes(*tree_, values.data());
  for (size_t at = 0; at < tree_->nodes.size(); ++at) {
    const Node& node = tree_->nodes[at];
    if (!needed[at] || node.op != Op::element) continue;
    const TensorView& view = bindings.tensors[node.integer];
    for (int axis = 0; axis < node.num_operands; ++axis) {
      const int32_t index = values[node.operands[axis]].integer;
      if (index >= 0 && index < view.shape[axis]) continue;
      return {
          StatusCode::invalid_argument,
          fmt::format("{}: index {} of tensor '{}' is {} at b = {}, h = {}, q = {}, k = {}, and "
                      "the axis has {} entries; guard the read with a condition",
                      name_of(tree_->kind), axis, tree_->tensors[node.integer], index, point.b,
                      point.h, point.q, point.k, view.shape[axis]),
          std::string(name_of(tree_->kind))};
    }
  }
  return {};
}

bool Program::operator==(const Program& other) const { return *tree_ == *other.tree_; }

}  // namespace sirdar::expression
