// From a call's views to the launches of one backward.
#pragma once

#include "cuda/rows/backward/config.h"
#include "cuda/rows/backward/params.h"
#include "cuda/steps.h"
#include "expression/emit_cuda.h"

#include <sirdar/plan.hpp>

namespace sirdar::rows {

// The kernels of a problem, in the order of their launches; the last two run for each tensor that
// wants a gradient.
enum class Pass : int { query_rows, key_rows, bias_rows, term_sums, tensor_sums, tensor_gradient };
std::vector<Pass> passes_of(const Problem& problem);

size_t backward_workspace_bytes(const Problem& problem);

// The arguments must have been validated.
Result<std::vector<cuda::Step>> make_steps(const Problem& problem,
                                           const expression::DeviceModification& modification,
                                           const Args& args);

}  // namespace sirdar::rows
