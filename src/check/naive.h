// Attention as a program without any care would compute it: scores, softmax and products one after
// the other, in fp32, with weights rounded to the inputs' dtype before they meet V. Its error on
// the same data is the measure that an implementation's error is held against.
#pragma once

#include <sirdar/plan.hpp>

namespace sirdar::check {

// Arguments must be valid. Writes the outputs in `args`. Throws std::bad_alloc.
void run_naive(const Problem& problem, const Args& args);

}  // namespace sirdar::check
