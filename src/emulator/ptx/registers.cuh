#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

template <int kCount>
inline void setmaxnreg_inc(Here here = Here::current()) {
  if (machine().enter(Op::kSetmaxnregInc, here) == Change::kLeftOut) return;
  emulator::setmaxnreg(kCount, true);
}
template <int kCount>
inline void setmaxnreg_dec(Here here = Here::current()) {
  if (machine().enter(Op::kSetmaxnregDec, here) == Change::kLeftOut) return;
  emulator::setmaxnreg(kCount, false);
}

}  // namespace sirdar::ptx
