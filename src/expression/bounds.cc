#include "expression/bounds.h"

#include <cstring>

namespace sirdar::expression {
namespace {

// Elements of one tensor read that are looked at to learn their range: a 256 by 256 tile's worth.
constexpr int64_t kMaxScanned = 1 << 16;

// Positions of a half open range, moved by `shift`, as the ints of the language.
IntRange positions(Range range, int64_t shift) {
  return wrapped(range.begin + shift, range.end - 1 + shift);
}

Bounds anything(Type type) {
  Bounds result;
  if (type == Type::integer) result.integer = kAnyInt;
  if (type == Type::real) result.real = kAnyReal;
  if (type == Type::boolean) result.truth = kAnyTruth;
  return result;
}

Bounds exactly(Type type, int32_t integer, double real) {
  Bounds result;
  const bool is_nan = real != real;
  if (type == Type::integer) result.integer = {integer, integer};
  if (type == Type::real) result.real = is_nan ? kAnyReal : RealRange{real, real, false};
  if (type == Type::boolean) result.truth = {integer != 0, integer == 0};
  return result;
}

Bounds read(const TensorView& view, Type type, int64_t offset) {
  if (type == Type::boolean) {
    return exactly(type, static_cast<const uint8_t*>(view.data)[offset] != 0, 0);
  }
  const char* at = static_cast<const char*>(view.data) + offset * 4;
  int32_t integer = 0;
  float real = 0;
  std::memcpy(&integer, at, sizeof integer);
  std::memcpy(&real, at, sizeof real);
  return exactly(type, integer, real);
}

Bounds hull(const Bounds& a, const Bounds& b) {
  return {hull(a.integer, b.integer), hull(a.real, b.real), hull(a.truth, b.truth)};
}

// The range of a tensor's elements over a box of indices, by looking at each of them while they are
// few.
Bounds element_bounds(const Node& node, const TensorView& view, const std::vector<Bounds>& known) {
  std::array<IntRange, kMaxRank> indices{};
  int64_t count = 1;
  for (int axis = 0; axis < node.num_operands; ++axis) {
    const int64_t size = view.shape[axis];
    if (size <= 0) return exactly(node.type, 0, 0);
    const IntRange given = known[node.operands[axis]].integer;
    indices[axis] = {std::clamp<int64_t>(given.lo, 0, size - 1),
                     std::clamp<int64_t>(given.hi, 0, size - 1)};
    const int64_t length = indices[axis].hi - indices[axis].lo + 1;
    if (length > kMaxScanned / count) return anything(node.type);
    count *= length;
  }
  std::optional<Bounds> result;
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, offset = 0;
    for (int axis = node.num_operands; axis-- > 0;) {
      const int64_t length = indices[axis].hi - indices[axis].lo + 1;
      const int64_t index = indices[axis].lo + rest % length;
      rest /= length;
      if (index > 0) offset += index * view.stride[axis];
    }
    const Bounds element = read(view, node.type, offset);
    result = result ? hull(*result, element) : element;
  }
  return *result;
}

Truth and_then(Truth a, Truth b) {
  return {a.may_be_true && b.may_be_true, a.may_be_false || b.may_be_false};
}
Truth or_else(Truth a, Truth b) {
  return {a.may_be_true || b.may_be_true, a.may_be_false && b.may_be_false};
}

Bounds apply_operator(const Program::Tree& tree, const Node& node,
                      const std::vector<Bounds>& known) {
  const Bounds& a = known[node.operands[0]];
  const Bounds& b = known[node.operands[1]];  // of a node with one operand: any node's, not used
  Bounds result;
  switch (node.op) {
    case Op::to_real:
      result.real = {static_cast<double>(a.integer.lo), static_cast<double>(a.integer.hi), false};
      break;
    case Op::logical_not:
      result.truth = {a.truth.may_be_false, a.truth.may_be_true};
      break;
    case Op::logical_and:
      result.truth = and_then(a.truth, b.truth);
      break;
    case Op::logical_or:
      result.truth = or_else(a.truth, b.truth);
      break;
    case Op::select: {
      const Bounds& c = known[node.operands[2]];
      result = !a.truth.may_be_false ? b : !a.truth.may_be_true ? c : hull(b, c);
      break;
    }
    case Op::less:
    case Op::less_equal:
    case Op::greater:
    case Op::greater_equal:
    case Op::equal:
    case Op::not_equal: {
      const Type type = tree.operand(node, 0).type;
      result.truth = type == Type::integer ? compare(node.op, a.integer, b.integer)
                     : type == Type::real  ? compare(node.op, a.real, b.real)
                                           : compare(node.op, a.truth, b.truth);
      break;
    }
    default:
      if (node.type == Type::integer) {
        result.integer = node.num_operands == 1 ? apply(node.op, a.integer)
                                                : apply(node.op, a.integer, b.integer);
      } else {
        result.real =
            node.num_operands == 1 ? apply(node.op, a.real) : apply(node.op, a.real, b.real);
      }
  }
  return result;
}

Bounds leaf_bounds(const Node& node, const Bindings& bindings, const Box& box) {
  switch (node.op) {
    case Op::b:
      return exactly(Type::integer, wrap(box.b), 0);
    case Op::h:
      return exactly(Type::integer, wrap(box.h), 0);
    case Op::q:
      return {.integer = positions(box.q, 0)};
    case Op::k:
      return {.integer = positions(box.k, 0)};
    case Op::q_pos:
      return {.integer = positions(box.q, box.shift)};
    case Op::scalar:
      return exactly(Type::real, 0, static_cast<float>(bindings.scalars[node.integer]));
    case Op::score:
      return anything(Type::real);
    default:
      return exactly(node.type, node.integer, node.real);
  }
}

}  // namespace

std::vector<Bounds> bounds(const Program::Tree& tree, const Bindings& bindings, const Box& box) {
  std::vector<Bounds> known(tree.nodes.size());
  for (size_t at = 0; at < tree.nodes.size(); ++at) {
    const Node& node = tree.nodes[at];
    if (node.op == Op::element) {
      known[at] = element_bounds(node, bindings.tensors[node.integer], known);
    } else if (node.num_operands == 0) {
      known[at] = leaf_bounds(node, bindings, box);
    } else {
      known[at] = apply_operator(tree, node, known);
    }
  }
  return known;
}

Cover Program::coverage(const Bindings& bindings, const Box& box) const {
  if (box.q.empty() || box.k.empty()) return Cover::none;
  const Truth truth = bounds(*tree_, bindings, box).back().truth;
  if (!truth.may_be_true) return Cover::none;
  return truth.may_be_false ? Cover::part : Cover::all;
}

}  // namespace sirdar::expression
