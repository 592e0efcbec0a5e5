// Registry entry of the Hopper forward.
#pragma once

#include "plan/implementation.h"

namespace sirdar::sm90 {

extern const Implementation kForward;

}  // namespace sirdar::sm90
