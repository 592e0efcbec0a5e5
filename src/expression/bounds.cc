#include "expression/bounds.h"

#include <algorithm>

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

// The elements from `offset` on, `stride` apart; count >= 1.
Bounds run_bounds(const TensorView& view, Type type, int64_t offset, int64_t stride,
                  int64_t count) {
  Bounds result;
  if (type == Type::boolean) {
    const uint8_t* at = static_cast<const uint8_t*>(view.data) + offset;
    for (int64_t i = 0; i < count; ++i) {
      (at[i * stride] != 0 ? result.truth.may_be_true : result.truth.may_be_false) = true;
    }
  } else if (type == Type::integer) {
    const int32_t* at = static_cast<const int32_t*>(view.data) + offset;
    int32_t lo = *at, hi = *at;
    for (int64_t i = 1; i < count; ++i) {
      lo = std::min(lo, at[i * stride]);
      hi = std::max(hi, at[i * stride]);
    }
    result.integer = {lo, hi};
  } else {
    const float* at = static_cast<const float*>(view.data) + offset;
    float lo = *at, hi = *at;
    bool is_nan = false;
    for (int64_t i = 0; i < count; ++i) {
      const float one = at[i * stride];
      is_nan |= one != one;
      lo = std::min(lo, one);
      hi = std::max(hi, one);
    }
    result.real = is_nan ? kAnyReal : RealRange{lo, hi, false};
  }
  return result;
}

Bounds hull(Type type, const Bounds& a, const Bounds& b) {
  Bounds result;
  if (type == Type::integer) result.integer = hull(a.integer, b.integer);
  if (type == Type::real) result.real = hull(a.real, b.real);
  if (type == Type::boolean) result.truth = hull(a.truth, b.truth);
  return result;
}

// The range of a tensor's elements over a box of indices, by looking at each of them while they are
// few.
Bounds element_bounds(const Node& node, const TensorView& view, const BoundsTable& known) {
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
  const int last = node.num_operands - 1;
  const int64_t run = indices[last].hi - indices[last].lo + 1;
  // A stride that no index of the box multiplies may be anything.
  const auto moved = [&](int axis, int64_t index) {
    return index > 0 ? index * view.stride[axis] : 0;
  };
  std::optional<Bounds> result;
  for (int64_t i = 0; i < count; i += run) {
    int64_t rest = i / run, offset = moved(last, indices[last].lo);
    for (int axis = last; axis-- > 0;) {
      const int64_t length = indices[axis].hi - indices[axis].lo + 1;
      offset += moved(axis, indices[axis].lo + rest % length);
      rest /= length;
    }
    const int64_t stride = run > 1 ? view.stride[last] : 0;
    const Bounds elements = run_bounds(view, node.type, offset, stride, run);
    result = result ? hull(node.type, *result, elements) : elements;
  }
  return *result;
}

Truth and_then(Truth a, Truth b) {
  return {a.may_be_true && b.may_be_true, a.may_be_false || b.may_be_false};
}
Truth or_else(Truth a, Truth b) {
  return {a.may_be_true || b.may_be_true, a.may_be_false && b.may_be_false};
}

void apply_operator(const Program::Tree& tree, const Node& node, const BoundsTable& known,
                    Bounds& result) {
  const Bounds& a = known[node.operands[0]];
  const Bounds& b = known[node.operands[1]];  // of a node with one operand: any node's, not used
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
      result = !a.truth.may_be_false ? b : !a.truth.may_be_true ? c : hull(node.type, b, c);
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
}

Bounds leaf_bounds(const Node& node, const Bindings& bindings, const Box& box) {
  switch (node.op) {
    case Op::b:
      return exactly(Type::integer, wrap(box.b), 0);
    case Op::h:
      return {.integer = positions({box.h, box.h + box.num_heads}, 0)};
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

bool is_same(Type type, const Bounds& a, const Bounds& b) {
  switch (type) {
    case Type::integer:
      return a.integer.lo == b.integer.lo && a.integer.hi == b.integer.hi;
    case Type::real:
      return a.real.lo == b.real.lo && a.real.hi == b.real.hi &&
             a.real.may_be_nan == b.real.may_be_nan;
    default:
      return a.truth.may_be_true == b.truth.may_be_true &&
             a.truth.may_be_false == b.truth.may_be_false;
  }
}

void bound_node(const Program::Tree& tree, const Bindings& bindings, const Box& box, size_t at,
                const BoundsTable& known) {
  const Node& node = tree.nodes[at];
  if (node.op == Op::element) {
    known[at] = element_bounds(node, bindings.tensors[node.integer], known);
  } else if (node.num_operands == 0) {
    known[at] = leaf_bounds(node, bindings, box);
  } else {
    apply_operator(tree, node, known, known[at]);
  }
}

void bound_section(const Program::Tree& tree, const Bindings& bindings, const Box& box,
                   std::span<const int32_t> nodes, const BoundsTable& known) {
  for (const int32_t at : nodes) bound_node(tree, bindings, box, static_cast<size_t>(at), known);
}

std::vector<Bounds> bounds(const Program::Tree& tree, const Bindings& bindings, const Box& box) {
  std::vector<Bounds> known(tree.nodes.size());
  const std::vector<Section> sections = sections_of(tree);
  const BoundsTable table{sections, {known.data(), known.data(), nullptr, known.data()}};
  for (const Section section : {Section::lanes, Section::keys, Section::pairs})
    bound_section(tree, bindings, box, nodes_of(sections, section), table);
  return known;
}

Cover Program::coverage(const Bindings& bindings, const Box& box) const {
  if (box.q.empty() || box.k.empty()) return Cover::none;
  return cover_of(bounds(*tree_, bindings, box).back().truth);
}

}  // namespace sirdar::expression
