// Kernels of one stream that overlap (Launch::is_programmatic).
#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

// The kernel behind this one may start its blocks as soon as all blocks have come here.
SIRDAR_DEVICE void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Until the kernel ahead of this one has ended and its results can be seen.
SIRDAR_DEVICE void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace sirdar::ptx
