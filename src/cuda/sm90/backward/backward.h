// Registry entry of the Hopper backward.
#pragma once

#include "plan/implementation.h"

namespace sirdar::sm90 {

extern const Implementation kBackward;

}  // namespace sirdar::sm90
