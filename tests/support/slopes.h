// The derivatives of a score_mod as expressions (expression/slope.h) beside the ones that are taken
// point by point.
#pragma once

#include "expression/expression.h"

namespace sirdar::testing {

// Whether both give the same derivatives, by the score and by every element of every fp32 tensor,
// for what hands down a number and for what hands down a NaN; infinities and NaN in the same
// places. Expressions of more nodes than can be evaluated at a point are left out.
bool slopes_agree(const expression::Program& program, const expression::Bindings& bindings,
                  const expression::Point& point);

}  // namespace sirdar::testing
