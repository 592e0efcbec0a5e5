// Reverse accumulation over the flat tree: one pass forwards for the values, one backwards that
// hands each node's adjoint (d loss / d node) to its operands. An adjoint that is exactly 0 is not
// handed on, so a branch that was not chosen contributes 0 even where its own slope is infinite or
// NaN, and what has no slope is handed nothing, even of a NaN.
#include "expression/arithmetic.h"

#include <numbers>

namespace sirdar::expression {
namespace {

// Where an element lies in its gradient, or -1 in a tensor that has no elements.
int64_t row_major_offset(const Node& node, const TensorView& view, const Slot* values) {
  int64_t offset = 0;
  for (int axis = 0; axis < node.num_operands; ++axis) {
    if (view.shape[axis] <= 0) return -1;
    const int32_t index = values[node.operands[axis]].integer;
    offset = offset * view.shape[axis] + clamp_index(index, view.shape[axis]);
  }
  return offset;
}

// height s (1 - s) with s = sigmoid(rate |x|) below 1/2: small slopes are exact too, where the
// difference of 1 and a number near it would be all rounding.
double bell(double x, double rate, double height) {
  const double s = apply(Op::sigmoid, rate * std::fabs(x));
  return s * (1 - s) * height;
}

// d f(x) / d x, given x and y = f(x).
double slope(Op op, double x, double y) {
  switch (op) {
    case Op::negate:
      return -1;
    case Op::abs:
      return x > 0 ? 1 : x < 0 ? -1 : x;  // 0 at 0, NaN at NaN
    case Op::exp:
      return y;
    case Op::exp2:
      return y * std::numbers::ln2;
    case Op::log:
      return 1 / x;
    case Op::tanh:
      return bell(x, -2, 4);
    case Op::sigmoid:
      return bell(x, -1, 1);
    default:
      return 0.5 / y;  // sqrt
  }
}

// Adds `adjoint` of a node of type real to its operands' adjoints.
void hand_on(const Node& node, size_t at, double adjoint, const Slot* values, double* adjoints) {
  const int32_t first = node.operands[0], second = node.operands[1], third = node.operands[2];
  auto real = [&](int32_t operand) { return values[operand].real; };
  switch (node.op) {
    case Op::add:
      adjoints[first] += adjoint;
      adjoints[second] += adjoint;
      break;
    case Op::subtract:
      adjoints[first] += adjoint;
      adjoints[second] -= adjoint;
      break;
    case Op::multiply:
      adjoints[first] += adjoint * real(second);
      adjoints[second] += adjoint * real(first);
      break;
    case Op::divide:
      adjoints[first] += adjoint / real(second);
      adjoints[second] -= adjoint * real(static_cast<int32_t>(at)) / real(second);
      break;
    case Op::min:
    case Op::max:
      adjoints[takes_first(node.op, real(first), real(second)) ? first : second] += adjoint;
      break;
    case Op::select:
      adjoints[values[first].boolean ? second : third] += adjoint;
      break;
    case Op::negate:
    case Op::abs:
    case Op::exp:
    case Op::exp2:
    case Op::log:
    case Op::tanh:
    case Op::sigmoid:
    case Op::sqrt:
      adjoints[first] += adjoint * slope(node.op, real(first), values[at].real);
      break;
    default:
      break;  // leaves, floor, and to_real: an int has no derivative
  }
}

}  // namespace

double Program::derivative(const Bindings& bindings, const Point& point, double upstream,
                           std::span<double* const> tensor_grads) const {
  std::array<Slot, kMaxNodes> values;
  std::array<double, kMaxNodes> adjoints;
  const size_t count = tree_->nodes.size();
  evaluate(*tree_, bindings, point, values.data());
  std::fill_n(adjoints.begin(), count, 0.0);
  adjoints[count - 1] = upstream;
  double score_derivative = 0;
  for (size_t at = count; at-- > 0;) {
    const Node& node = tree_->nodes[at];
    const double adjoint = adjoints[at];
    if (node.type != Type::real || adjoint == 0) continue;
    if (node.op == Op::score) {
      score_derivative += adjoint;
    } else if (node.op == Op::element) {
      const size_t tensor = static_cast<size_t>(node.integer);
      if (tensor >= tensor_grads.size() || !tensor_grads[tensor]) continue;
      const int64_t offset = row_major_offset(node, bindings.tensors[tensor], values.data());
      if (offset >= 0) tensor_grads[tensor][offset] += adjoint;
    } else {
      hand_on(node, at, adjoint, values.data(), adjoints.data());
    }
  }
  return score_derivative;
}

}  // namespace sirdar::expression
