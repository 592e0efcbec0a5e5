// The derivatives of a score_mod as expressions of their own, for implementations that
// evaluate many pairs at once. The conventions are those of Program::derivative. It may have more
// nodes than a text may, and is then for vectorise() alone.
#pragma once

#include "expression/ast.h"

namespace sirdar::expression {

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
