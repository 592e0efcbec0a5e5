// An expression over a tile of queries and keys by the vector program of one instruction set,
// outside of any attention.
#pragma once

#include "cpu/microkernel.h"
#include "expression/expression.h"

namespace sirdar::testing {

// Values of [k, q] over the box, for its first head, in vectors of one or two; bits of a float, or
// 0 or -1 of a bool. `scores` has as many; a mask_mod does not read it. With has_distances, what
// depends on the distance alone is computed once per distance.
std::vector<int32_t> evaluate(const cpu::MicroKernels& kernels, int vectors,
                              const expression::Program& program,
                              const expression::Bindings& bindings, const expression::Box& box,
                              const std::vector<float>& scores, bool has_distances = true);

}  // namespace sirdar::testing
