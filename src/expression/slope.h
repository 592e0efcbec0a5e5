// The derivative of a score_mod by the score as an expression of its own, for implementations that
// evaluate many pairs at once. The conventions are those of Program::derivative. It may have more
// nodes than a text may, and is then for vectorise() alone.
#pragma once

#include "expression/ast.h"

namespace sirdar::expression {

Program slope_of(const Program& score_mod);

}  // namespace sirdar::expression
