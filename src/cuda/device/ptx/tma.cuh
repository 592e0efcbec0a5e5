// cp.async.bulk.tensor: the TMA engine. Async proxy; issued by one thread. Coordinates count
// elements, fastest axis first; boxes reach over the edges of the tensor as the map says (zeros in,
// nothing out).
#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

// L2 priorities, as a load takes them.
SIRDAR_DEVICE uint64_t createpolicy_evict_last() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
SIRDAR_DEVICE uint64_t createpolicy_evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

SIRDAR_DEVICE void prefetch_tensormap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Box -> shared memory; the bytes of the whole box arrive at `bar`, also those out of range.
// `dst`: shared, 128-byte aligned (1024 under the 128-byte swizzle).
SIRDAR_DEVICE void cp_async_bulk_tensor_4d_load(uint32_t dst, const TensorMap& map, uint32_t bar,
                                                int c0, int c1, int c2, int c3, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(dst),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}
SIRDAR_DEVICE void cp_async_bulk_tensor_5d_load(uint32_t dst, const TensorMap& map, uint32_t bar,
                                                int c0, int c1, int c2, int c3, int c4,
                                                uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(dst),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(policy)
      : "memory");
}

// A hint: the box is going to be loaded.
SIRDAR_DEVICE void prefetch_tensor_4d(const TensorMap& map, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map),
      "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// Into the same offset of every block of `cta_mask`, signalling the barrier of the same offset.
SIRDAR_DEVICE void cp_async_bulk_tensor_4d_multicast(uint32_t dst, const TensorMap& map,
                                                     uint32_t bar, int c0, int c1, int c2, int c3,
                                                     uint16_t cta_mask, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(dst),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(cta_mask), "l"(policy)
      : "memory");
}

// Shared memory -> box, part of the thread's current bulk group.
SIRDAR_DEVICE void cp_async_bulk_tensor_4d_store(const TensorMap& map, uint32_t src, int c0, int c1,
                                                 int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          &map),
      "r"(src), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
SIRDAR_DEVICE void cp_async_bulk_tensor_5d_store(const TensorMap& map, uint32_t src, int c0, int c1,
                                                 int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], "
      "[%1];" ::"l"(&map),
      "r"(src), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// The same, added to what is there.
SIRDAR_DEVICE void cp_async_bulk_tensor_4d_reduce_add(const TensorMap& map, uint32_t src, int c0,
                                                      int c1, int c2, int c3) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4, %5}], "
      "[%1];" ::"l"(&map),
      "r"(src), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// Without a tensor map: `bytes` neighbouring bytes, a multiple of 16, between addresses that are
// multiples of 16. Loads arrive at `bar`, stores are part of the thread's current bulk group.
SIRDAR_DEVICE void cp_async_bulk_load(uint32_t dst, const void* src, int bytes, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(dst),
      "l"(src), "r"(bytes), "r"(bar)
      : "memory");
}
// From this block's shared memory to the offset `dst` of block `cta` of the cluster, arriving at
// the barrier of the offset `bar` there.
SIRDAR_DEVICE void cp_async_bulk_copy_cluster(uint32_t dst, uint32_t src, int bytes, uint32_t bar,
                                              int cta) {
  asm volatile(
      "{ .reg .b32 to, at; mapa.shared::cluster.u32 to, %0, %4;\n"
      "mapa.shared::cluster.u32 at, %3, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%1], %2, "
      "[at]; }" ::"r"(dst),
      "r"(src), "r"(bytes), "r"(bar), "r"(cta)
      : "memory");
}
SIRDAR_DEVICE void cp_async_bulk_store(float* dst, uint32_t src, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src),
               "r"(bytes)
               : "memory");
}
// fp32 values, added one by one to what is there.
SIRDAR_DEVICE void cp_async_bulk_reduce_add(float* dst, uint32_t src, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(dst),
      "r"(src), "r"(bytes)
      : "memory");
}

SIRDAR_DEVICE void cp_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// At most kPending of this thread's groups still read shared memory.
template <int kPending>
SIRDAR_DEVICE void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// At most kPending of this thread's groups are still to be written.
template <int kPending>
SIRDAR_DEVICE void cp_async_bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace sirdar::ptx
