// What a node may be where every operation on reals is rounded: the bounds of interval arithmetic,
// widened after each operation by the error that docs/expressions.md states for it. Where rounding
// may turn a comparison, either outcome is possible from there on.
#pragma once

#include "expression/bounds.h"

namespace sirdar::testing {

// In the order of Tree::nodes, at one point.
std::vector<expression::Bounds> rounded_bounds(const expression::Program::Tree& tree,
                                               const expression::Bindings& bindings,
                                               const expression::Point& point);

bool contains(const expression::Bounds& bounds, float value);
bool contains(const expression::Bounds& bounds, bool value);

}  // namespace sirdar::testing
