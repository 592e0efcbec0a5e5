// From a call's views to the parameters of one launch.
#pragma once

#include "cuda/rows/forward/config.h"
#include "cuda/rows/forward/params.h"

#include <sirdar/plan.hpp>

namespace sirdar::rows {

// The arguments must have been validated.
ForwardParams make_params(const Problem& problem, const ForwardConfig& config, const Args& args);

}  // namespace sirdar::rows
