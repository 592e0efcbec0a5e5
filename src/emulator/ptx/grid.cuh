// Of launches that overlap; of others these do nothing.
#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

inline void griddepcontrol_launch_dependents(Here here = Here::current()) {
  if (!machine().overlaps()) return;
  if (machine().enter(Op::kLaunchDependents, here) == Change::kLeftOut) return;
  machine().let_next_begin();
}
inline void griddepcontrol_wait(Here here = Here::current()) {
  if (!machine().overlaps()) return;
  if (machine().enter(Op::kGridWait, here) == Change::kLeftOut) return;
  machine().wait_for_grid();
}

}  // namespace sirdar::ptx
