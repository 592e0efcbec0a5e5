#include "support/slopes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "expression/ast.h"
#include "expression/slope.h"

namespace sirdar::testing {
namespace {

using expression::Bindings;
using expression::Node;
using expression::Point;
using expression::Program;

bool is_same(double actual, double expected) {
  return actual == expected || (std::isnan(actual) && std::isnan(expected)) ||
         std::abs(actual - expected) <= 1e-12 * std::abs(expected);
}

// The value of a node and of what it is computed from.
double value_at(const Program& program, int32_t node, const Bindings& bindings,
                const Point& point) {
  Program::Tree tree = program.tree();
  tree.nodes.resize(static_cast<size_t>(node) + 1);
  if (tree.nodes.back().type == expression::Type::integer)
    tree.nodes.push_back({.op = expression::Op::to_real,
                          .type = expression::Type::real,
                          .num_operands = 1,
                          .operands = {node}});
  return Program(std::make_shared<const Program::Tree>(std::move(tree))).value(bindings, point);
}

// As implementations multiply.
double product(double upstream, double slope) {
  const bool stops = upstream == 0 || (slope == 0 && std::signbit(slope));
  return stops ? 0 : upstream * slope;
}

// -1 in a tensor without elements.
int64_t place_of(const Program& program, const Node& element, const Bindings& bindings,
                 const Point& point) {
  const TensorView& view = bindings.tensors[static_cast<size_t>(element.integer)];
  int64_t place = 0;
  for (int axis = 0; axis < element.num_operands; ++axis) {
    const int64_t size = view.shape[static_cast<size_t>(axis)];
    if (size == 0) return -1;
    const auto index =
        static_cast<int64_t>(value_at(program, element.operands[axis], bindings, point));
    place = place * size + std::clamp<int64_t>(index, 0, size - 1);
  }
  return place;
}

using Gradients = std::vector<std::vector<double>>;

Gradients no_gradients(const Bindings& bindings) {
  Gradients result;
  for (const TensorView& view : bindings.tensors) {
    int64_t size = view.dtype == DType::fp32 ? 1 : 0;
    for (int axis = 0; axis < view.rank; ++axis) size *= view.shape[static_cast<size_t>(axis)];
    result.emplace_back(static_cast<size_t>(size));
  }
  return result;
}

bool agree(const Program& program, const Bindings& bindings, const Point& point, double upstream) {
  const Program slope = expression::slope_of(program);
  Gradients expected = no_gradients(bindings), actual = expected;
  std::vector<double*> into;
  std::vector<bool> wanted;
  for (std::vector<double>& tensor : expected) {
    wanted.push_back(!tensor.empty());
    into.push_back(tensor.empty() ? nullptr : tensor.data());
  }
  const double by_score = program.derivative(bindings, point, upstream, into);
  const expression::ElementSlopes slopes = expression::element_slopes_of(program, wanted);
  if (std::max(slope.tree().nodes.size(), slopes.program.tree().nodes.size()) >
      expression::kMaxNodes)
    return true;
  if (!is_same(product(upstream, slope.value(bindings, point)), by_score)) return false;
  for (const expression::ElementSlope& read : slopes.reads) {
    const Node& element = slopes.program.tree().nodes[static_cast<size_t>(read.element)];
    const int64_t place = place_of(slopes.program, element, bindings, point);
    if (place < 0) continue;
    actual[static_cast<size_t>(element.integer)][static_cast<size_t>(place)] +=
        product(upstream, value_at(slopes.program, read.slope, bindings, point));
  }
  for (size_t t = 0; t < expected.size(); ++t)
    if (!std::ranges::equal(actual[t], expected[t], is_same)) return false;
  return true;
}

}  // namespace

bool slopes_agree(const Program& program, const Bindings& bindings, const Point& point) {
  return agree(program, bindings, point, 1) && agree(program, bindings, point, std::nan(""));
}

}  // namespace sirdar::testing
