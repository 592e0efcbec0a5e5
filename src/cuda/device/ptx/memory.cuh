// Ordinary (generic proxy) accesses: shared memory by 32-bit address, and the global accesses that
// other blocks take part in.
#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

struct alignas(16) Int4 {
  int x, y, z, w;
};

SIRDAR_DEVICE void store_shared(uint32_t dst, Int4 value) {  // dst 16-byte aligned
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(dst), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}
SIRDAR_DEVICE void store_shared(uint32_t dst, uint32_t value) {  // dst 4-byte aligned
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(dst), "r"(value) : "memory");
}
SIRDAR_DEVICE Int4 load_shared_int4(uint32_t src) {  // src 16-byte aligned
  Int4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(src)
               : "memory");
  return value;
}

// Global memory that nobody writes while the kernel runs: such loads may be merged and moved.
template <class T>
SIRDAR_DEVICE T load_constant(const T* address) {
  return __ldg(address);
}

struct Float2 {
  float x, y;
};
SIRDAR_DEVICE Float2 load_constant_float2(const void* address) {  // 8-byte aligned
  const float2 value = __ldg(static_cast<const float2*>(address));
  return {value.x, value.y};
}

SIRDAR_DEVICE Int4 load_constant_int4(const void* address) {  // 16-byte aligned
  const int4 value = __ldg(static_cast<const int4*>(address));
  return {value.x, value.y, value.z, value.w};
}

// Global memory that the kernel ahead writes, and may still write when this one begins: behind
// griddepcontrol_wait(). load_constant() is for what nobody writes while the kernel runs, and takes
// a path of its own that need not see such writes.
SIRDAR_DEVICE uint32_t load_written(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
}
SIRDAR_DEVICE uint32_t load_written(const uint16_t* address) {
  uint16_t value;
  asm volatile("ld.global.b16 %0, [%1];" : "=h"(value) : "l"(address));
  return value;
}
SIRDAR_DEVICE Int4 load_written_int4(const void* address) {  // 16-byte aligned
  Int4 value;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

// Ordinary stores and loads of what other blocks or the next kernel read, told by a flag or by the
// kernel's end: the emulator checks that they are.
template <class T>
SIRDAR_DEVICE void store_global(T* address, const T& value) {
  *address = value;
}
template <class T>
SIRDAR_DEVICE T load_global(const T* address) {
  return *address;
}

// Global memory that is read, or written, once: lines that others need stay in L2 for longer.
SIRDAR_DEVICE Int4 load_once_int4(const void* address) {  // 16-byte aligned
  Int4 value;
  asm volatile("ld.global.cs.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address)
               : "memory");
  return value;
}
SIRDAR_DEVICE uint32_t load_once(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.global.cs.b32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
SIRDAR_DEVICE void store_once_int4(void* address, Int4 value) {  // 16-byte aligned
  asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

// A hint: the line of global memory is going to be read.
SIRDAR_DEVICE void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

SIRDAR_DEVICE uint32_t load_shared(uint32_t src) {  // 4-byte aligned
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(src) : "memory");
  return value;
}
SIRDAR_DEVICE Float2 load_shared_float2(uint32_t src) {  // 8-byte aligned
  Float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(src));
  return value;
}

// Waits until another block has stored `value`; acquire, GPU scope.
SIRDAR_DEVICE void wait_until_equal(const int* address, int value) {
  int seen;
  do {
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(seen) : "l"(address) : "memory");
  } while (seen != value);
}
// For who waits for it; release, GPU scope.
SIRDAR_DEVICE void store_release(int* address, int value) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Returns the old value; relaxed, GPU scope.
SIRDAR_DEVICE int atomic_add(int* address, int value) {
  int old;
  asm volatile("atom.global.add.s32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(address), "r"(value)
               : "memory");
  return old;
}

}  // namespace sirdar::ptx
