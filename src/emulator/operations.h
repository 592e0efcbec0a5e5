// Operations that take more than a line; ptx/*.cuh calls them. Each says what the instruction of
// its name says; `change` is what is planted there.
#pragma once

#include <cstdint>

#include "machine.h"
#include "tensor_map_fields.h"

namespace sirdar::emulator {

// --- warps (warp.cc)
uint32_t shfl(uint32_t mask, uint32_t value, int source_lane);
uint32_t ballot(uint32_t mask, bool predicate);
bool elected();
void ldmatrix(uint32_t address, int matrices, bool transposed, uint32_t* out);
void stmatrix(uint32_t address, int matrices, bool transposed, const uint32_t* in, Change change);
void mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b, bool fp16);
void setmaxnreg(int registers, bool more);

// --- TMA (tma.cc)
struct LoadRequest {
  const void* map;
  uint32_t destination, barrier;
  int coordinates[5];
  int rank;
  uint16_t multicast;  // 0: this block alone
};
void tma_load(LoadRequest request, Change change);
struct StoreRequest {
  const void* map;
  uint32_t source;
  int coordinates[5];
  int rank;
  bool reduce;
};
void tma_store(StoreRequest request, Change change);
// Without a map: neighbouring bytes, fp32 where they are added.
void bulk_load(uint32_t destination, const void* source, int bytes, uint32_t barrier,
               Change change);
// Between blocks of a cluster: to the same offsets of block `cta`.
void bulk_copy(uint32_t destination, uint32_t source, int bytes, uint32_t barrier, int cta,
               Change change);
void bulk_store(float* destination, uint32_t source, int bytes, bool reduce, Change change);
void bulk_commit();
void bulk_wait(int groups, bool read_only);

// --- wgmma (wgmma.cc)
struct MmaRequest {
  float* d;  // n / 2 registers
  int n;
  const uint32_t* a;  // 4 registers, or null: from shared memory
  uint64_t a_descriptor, b_descriptor;
  bool transpose_a, transpose_b, scale_d, fp16;
};
void wgmma(const MmaRequest& request, Change change);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int groups);
void registers_ready(const void* registers, int count);
void loop_waited();  // control flow that needs a wgmma.fence before the next wgmma

// 16-bit elements of registers and memory.
float from_bf16(uint16_t bits);
float from_fp16(uint16_t bits);

}  // namespace sirdar::emulator
