// What the registry knows of this folder.
#pragma once

#include "plan/implementation.h"

namespace sirdar::cpu {

extern const Implementation kCpuForward;
extern const Implementation kCpuBackward;

}  // namespace sirdar::cpu
