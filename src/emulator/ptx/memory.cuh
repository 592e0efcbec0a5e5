#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

struct alignas(16) Int4 {
  int x, y, z, w;
};

inline void store_shared(uint32_t dst, Int4 value, Here here = Here::current()) {
  if (machine().enter(Op::kStoreShared, here) == Change::kLeftOut) return;
  machine().write_shared(dst, &value, sizeof value);
}
inline void store_shared(uint32_t dst, uint32_t value, Here here = Here::current()) {
  if (machine().enter(Op::kStoreShared, here) == Change::kLeftOut) return;
  machine().write_shared(dst, &value, sizeof value);
}
inline Int4 load_shared_int4(uint32_t src, Here here = Here::current()) {
  machine().enter(Op::kLoadShared, here);
  Int4 value;
  machine().read_shared(src, &value, sizeof value);
  return value;
}

template <class T>
inline T load_constant(const T* address) {
  return *address;
}

struct Float2 {
  float x, y;
};
inline Float2 load_constant_float2(const void* address) {
  return *static_cast<const Float2*>(address);
}

inline Int4 load_constant_int4(const void* address) { return *static_cast<const Int4*>(address); }

template <class T>
inline uint32_t load_written(const T* address) {
  return *address;
}
inline Int4 load_written_int4(const void* address) { return *static_cast<const Int4*>(address); }

template <class T>
inline void store_global(T* address, const T& value, Here here = Here::current()) {
  if (machine().enter(Op::kStoreGlobal, here) == Change::kLeftOut) return;
  machine().write_global(address, sizeof(T));
  *address = value;
}
template <class T>
inline T load_global(const T* address, Here here = Here::current()) {
  machine().enter(Op::kOther, here);
  machine().read_global(address, sizeof(T));
  return *address;
}

inline Int4 load_once_int4(const void* address, Here here = Here::current()) {
  machine().enter(Op::kOther, here);
  machine().read_global(address, 16);
  return *static_cast<const Int4*>(address);
}
inline uint32_t load_once(const uint32_t* address) { return *address; }
inline void store_once_int4(void* address, Int4 value) { *static_cast<Int4*>(address) = value; }

inline void prefetch_l2(const void*) {}

inline uint32_t load_shared(uint32_t src, Here here = Here::current()) {
  machine().enter(Op::kLoadShared, here);
  uint32_t value;
  machine().read_shared(src, &value, sizeof value);
  return value;
}
inline Float2 load_shared_float2(uint32_t src, Here here = Here::current()) {
  machine().enter(Op::kLoadShared, here);
  Float2 value;
  machine().read_shared(src, &value, sizeof value);
  return value;
}

inline void wait_until_equal(const int* address, int value, Here here = Here::current()) {
  if (machine().enter(Op::kWaitGlobal, here) == Change::kLeftOut) return;
  machine().wait_global(address, value);
}
inline void store_release(int* address, int value, Here here = Here::current()) {
  if (machine().enter(Op::kReleaseGlobal, here) == Change::kLeftOut) return;
  machine().release_global(address, value);
}

inline int atomic_add(int* address, int value, Here here = Here::current()) {
  machine().enter(Op::kAtomic, here);
  const int old = *address;
  *address = static_cast<int>(static_cast<unsigned>(old) + static_cast<unsigned>(value));
  return old;
}

}  // namespace sirdar::ptx
