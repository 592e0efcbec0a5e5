// Whether a config with fields of the caller's is a kernel, and one of the same problem.
#pragma once

#include "cuda/sm90/backward/config.h"
#include "cuda/sm90/knob_fault.h"

namespace sirdar::sm90 {

// `chosen`: the library's own choice for the problem, `config`: the same with the caller's fields.
KnobFault fault_of(const BackwardConfig& chosen, const BackwardConfig& config);

}  // namespace sirdar::sm90
