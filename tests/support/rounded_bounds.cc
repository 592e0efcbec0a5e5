#include "support/rounded_bounds.h"

#include <cfloat>
#include <cmath>
#include <limits>

namespace sirdar::testing {

using expression::Bounds;
using expression::Op;
using expression::RealRange;
using expression::Type;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Relative errors as docs/expressions.md states them.
double relative_error(Op op) {
  switch (op) {
    case Op::exp:
    case Op::exp2:
    case Op::log:
    case Op::tanh:
    case Op::sigmoid:
      return 2e-6;
    default:
      return 0x1p-22;
  }
}

// Results below the smallest normal may be off by the smallest subnormals; those beyond the largest
// become infinite.
RealRange widened(RealRange range, double relative) {
  const double tiny = 4 * static_cast<double>(FLT_TRUE_MIN);
  const auto move = [&](double x, double sign) {
    if (std::isinf(x)) return x;
    const double moved = x + sign * (std::abs(x) * relative + tiny);
    return std::abs(moved) >= FLT_MAX ? std::copysign(kInf, moved) : moved;
  };
  RealRange result{move(range.lo, -1), move(range.hi, 1), range.may_be_nan};
  // A bound that overflows need not: the largest float is as close.
  if (result.lo == kInf) result.lo = FLT_MAX;
  if (result.hi == -kInf) result.hi = -FLT_MAX;
  return result;
}

// Copies, selections and reads do not round.
bool rounds(const expression::Node& node) {
  switch (node.op) {
    case Op::literal:
    case Op::score:
    case Op::scalar:
    case Op::element:
    case Op::negate:
    case Op::abs:
    case Op::floor:
    case Op::min:
    case Op::max:
    case Op::select:
      return false;
    default:
      return node.type == Type::real;
  }
}

}  // namespace

std::vector<Bounds> rounded_bounds(const expression::Program::Tree& tree,
                                   const expression::Bindings& bindings,
                                   const expression::Point& point) {
  const expression::Box box{.b = point.b,
                            .h = point.h,
                            .q = {point.q, point.q + 1},
                            .k = {point.k, point.k + 1},
                            .shift = point.q_pos - point.q};
  std::vector<Bounds> known(tree.nodes.size());
  const std::vector<expression::Section> one_list(tree.nodes.size(), expression::Section::lanes);
  const expression::BoundsTable table{one_list, {known.data()}};
  for (size_t at = 0; at < tree.nodes.size(); ++at) {
    const expression::Node& node = tree.nodes[at];
    if (node.op == Op::score) {
      known[at].real = std::isnan(point.score) ? RealRange{-kInf, kInf, true}
                                               : RealRange{point.score, point.score, false};
      continue;
    }
    expression::bound_node(tree, bindings, box, at, table);
    if (rounds(node)) known[at].real = widened(known[at].real, relative_error(node.op));
  }
  return known;
}

bool contains(const Bounds& bounds, float value) {
  if (std::isnan(value)) return bounds.real.may_be_nan;
  return bounds.real.lo <= value && value <= bounds.real.hi;
}

bool contains(const Bounds& bounds, bool value) {
  return value ? bounds.truth.may_be_true : bounds.truth.may_be_false;
}

}  // namespace sirdar::testing
