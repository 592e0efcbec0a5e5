// The host face of ptx/: the functions of cuda/device/ptx/, for the emulated machine. Each has a
// parameter more, the place where it is called. cuda/device/ptx/ says what they promise.
#pragma once

#include "shared/tensor_map.h"

#include <cstdint>

#include "emulator/operations.h"

#define SIRDAR_DEVICE inline
#define SIRDAR_DEVICE_APART inline
#define SIRDAR_UNROLL
#define SIRDAR_NO_UNROLL

namespace sirdar {

namespace ptx {

using emulator::Change;
using emulator::Here;
using emulator::Op;

inline emulator::Machine& machine() { return emulator::Machine::current(); }

inline int thread_idx_x() { return machine().fiber().thread; }
inline int block_idx_x() { return static_cast<int>(machine().fiber().cta->index[0]); }
inline int grid_dim_x() { return static_cast<int>(machine().launch().grid.x); }
inline int cluster_ctarank() { return machine().fiber().cta->rank; }

inline int uniform(int value, Here here = Here::current()) {
  machine().enter(Op::kUniform, here);
  return static_cast<int>(emulator::shfl(~0u, static_cast<uint32_t>(value), 0));
}

inline uint32_t dynamic_shared() {
  return static_cast<uint32_t>(machine().fiber().cta->rank) << emulator::kRankShift |
         (emulator::kReservedShared + machine().launch().misalignment);
}

}  // namespace ptx
}  // namespace sirdar
