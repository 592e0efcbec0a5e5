// What every node of a tree can be while b and h stand still and q and k run over ranges.
#pragma once

#include "expression/interval.h"

namespace sirdar::expression {

struct Bounds {  // the node's type says which member is meant
  IntRange integer;
  RealRange real;
  Truth truth;
};

// In the order of Tree::nodes. `score` may be anything. Box::q and Box::k are not empty.
std::vector<Bounds> bounds(const Program::Tree& tree, const Bindings& bindings, const Box& box);

}  // namespace sirdar::expression
