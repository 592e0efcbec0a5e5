// Whether a config with fields of the caller's is a kernel, and one of the same problem.
#pragma once

#include "cuda/sm90/forward/config.h"

#include <string>

namespace sirdar::sm90 {

// Empty, or what a caller's fields must be, as the object of a sentence. `chosen`: the library's
// own choice for the problem, `config`: the same with the caller's fields.
std::string why_not(const ForwardConfig& chosen, const ForwardConfig& config);

}  // namespace sirdar::sm90
