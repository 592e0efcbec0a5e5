// What a problem costs with the data at hand, where the problem alone tells only a bound.
#pragma once

#include <sirdar/plan.hpp>

#include "plan/cost.h"

namespace sirdar::check {

// What is worth doing to count, in the time of reading one element: a few seconds.
inline constexpr int64_t kMostCounting = int64_t{1} << 31;

// The views of `args` must be valid and in host memory. Not exact where counting would take longer
// than `most`; then as cost_of(problem, lengths) says.
Cost data_cost(const Problem& problem, const Args& args, int64_t most = kMostCounting);

}  // namespace sirdar::check
