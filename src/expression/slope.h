// The derivatives of a score_mod as expressions of their own, for implementations that
// evaluate many pairs at once. The conventions are those of Program::derivative. It may have more
// nodes than a text may, and is then for vectorise() alone.
//
// A slope times a NaN is a NaN, but for kNoSlope, whose product with anything is 0: there the value
// does not depend on what it is the slope by. No other slope is -0.
#pragma once

#include "expression/ast.h"

namespace sirdar::expression {

inline constexpr double kNoSlope = -0.0;

// By the score.
Program slope_of(const Program& score_mod);

// By what one read of a tensor gave: places in the tree.
struct ElementSlope {
  int32_t element, slope;
};
struct ElementSlopes {
  Program program;  // its last node means nothing
  std::vector<ElementSlope> reads;
};
// By every read of the tensors that are wanted, in the order of the list given to parse(); reads
// whose derivative is 0 everywhere are left out.
ElementSlopes element_slopes_of(const Program& score_mod, const std::vector<bool>& wanted);

}  // namespace sirdar::expression
