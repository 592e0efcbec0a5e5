// From a call's views to the launches of one backward.
#pragma once

#include "cuda/rows/backward/config.h"
#include "cuda/rows/backward/params.h"
#include "cuda/steps.h"
#include "expression/emit_cuda.h"

#include <sirdar/plan.hpp>

namespace sirdar::rows {

// Kernels in the order of their launches; the last two run for each tensor that wants a gradient.
enum class Pass : int {
  query_rows,
  key_rows,
  query_states,
  key_terms,
  bias_rows,
  term_sums,
  tensor_sums,
  tensor_gradient
};
// All of a problem; and those of dbias and of tensors' gradients alone, where another kernel makes
// the rest: none of a problem without them.
std::vector<Pass> passes_of(const Problem& problem);
std::vector<Pass> companions_of(const Problem& problem);

size_t backward_workspace_bytes(const Problem& problem);

// The launches of these passes, of which steps name the places. The arguments must have been
// validated.
Result<std::vector<cuda::Step>> make_steps(const Problem& problem,
                                           const expression::DeviceModification& modification,
                                           const Args& args, const std::vector<Pass>& passes);
inline Result<std::vector<cuda::Step>> make_steps(
    const Problem& problem, const expression::DeviceModification& modification, const Args& args) {
  return make_steps(problem, modification, args, passes_of(problem));
}

}  // namespace sirdar::rows
