// What every device header stands on: fixed-width integers, the macros that kernels see, the
// opaque tensor map, and where a thread is. This is the device face of ptx/; emulator/ptx/ has the
// same functions in plain C++, and the include path chooses. A kernel has no #ifdef.
#pragma once

#include "shared/tensor_map.h"

// NVRTC has no <cstdint>.
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;

#define SIRDAR_DEVICE __device__ __forceinline__
// Called, not inlined: what hardly ever runs takes no registers of what always does.
#define SIRDAR_DEVICE_APART __device__ __noinline__
#define SIRDAR_UNROLL _Pragma("unroll")
#define SIRDAR_NO_UNROLL _Pragma("unroll 1")

namespace sirdar {

namespace ptx {

SIRDAR_DEVICE int thread_idx_x() { return static_cast<int>(threadIdx.x); }
SIRDAR_DEVICE int block_idx_x() { return static_cast<int>(blockIdx.x); }
SIRDAR_DEVICE int grid_dim_x() { return static_cast<int>(gridDim.x); }

// Rank of this block in its cluster; 0 without clusters.
SIRDAR_DEVICE int cluster_ctarank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// A value that is the same in all lanes, as the compiler cannot know: lane 0's. By a whole warp.
SIRDAR_DEVICE int uniform(int value) { return __shfl_sync(~0u, value, 0); }

// Shared address of the block's dynamic shared memory; the kernel aligns it itself. In a cluster
// the rank of the block sits above bit 17.
SIRDAR_DEVICE uint32_t dynamic_shared() {
  extern __shared__ uint8_t dynamic_shared_bytes[];
  return static_cast<uint32_t>(__cvta_generic_to_shared(dynamic_shared_bytes));
}

}  // namespace ptx
}  // namespace sirdar
