// Launches on the emulated machine do not overlap.
#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}

}  // namespace sirdar::ptx
