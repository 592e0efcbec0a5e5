// Moving registers between warpgroups.
#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

// By every warp of a warpgroup; kCount a multiple of 8 in 24..256. inc waits for the block's pool.
template <int kCount>
SIRDAR_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
SIRDAR_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace sirdar::ptx
