#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

inline uint64_t createpolicy_evict_last() { return 1; }
inline uint64_t createpolicy_evict_first() { return 2; }
inline void prefetch_tensormap(const TensorMap&) {}
inline void prefetch_tensor_4d(const TensorMap&, int, int, int, int) {}

inline void cp_async_bulk_tensor_4d_load(uint32_t dst, const TensorMap& map, uint32_t bar, int c0,
                                         int c1, int c2, int c3, uint64_t,
                                         Here here = Here::current()) {
  const Change change = machine().enter(Op::kTmaLoad, here);
  emulator::tma_load({&map, dst, bar, {c0, c1, c2, c3}, 4, 0}, change);
}
inline void cp_async_bulk_tensor_5d_load(uint32_t dst, const TensorMap& map, uint32_t bar, int c0,
                                         int c1, int c2, int c3, int c4, uint64_t,
                                         Here here = Here::current()) {
  const Change change = machine().enter(Op::kTmaLoad, here);
  emulator::tma_load({&map, dst, bar, {c0, c1, c2, c3, c4}, 5, 0}, change);
}
inline void cp_async_bulk_tensor_4d_multicast(uint32_t dst, const TensorMap& map, uint32_t bar,
                                              int c0, int c1, int c2, int c3, uint16_t cta_mask,
                                              uint64_t, Here here = Here::current()) {
  const Change change = machine().enter(Op::kTmaLoad, here);
  emulator::tma_load({&map, dst, bar, {c0, c1, c2, c3}, 4, cta_mask}, change);
}

inline void cp_async_bulk_tensor_4d_store(const TensorMap& map, uint32_t src, int c0, int c1,
                                          int c2, int c3, Here here = Here::current()) {
  const Change change = machine().enter(Op::kTmaStore, here);
  emulator::tma_store({&map, src, {c0, c1, c2, c3}, 4, false}, change);
}
inline void cp_async_bulk_tensor_5d_store(const TensorMap& map, uint32_t src, int c0, int c1,
                                          int c2, int c3, int c4, Here here = Here::current()) {
  const Change change = machine().enter(Op::kTmaStore, here);
  emulator::tma_store({&map, src, {c0, c1, c2, c3, c4}, 5, false}, change);
}

inline void cp_async_bulk_tensor_4d_reduce_add(const TensorMap& map, uint32_t src, int c0, int c1,
                                               int c2, int c3, Here here = Here::current()) {
  const Change change = machine().enter(Op::kTmaReduce, here);
  emulator::tma_store({&map, src, {c0, c1, c2, c3}, 4, true}, change);
}

inline void cp_async_bulk_load(uint32_t dst, const void* src, int bytes, uint32_t bar,
                               Here here = Here::current()) {
  const Change change = machine().enter(Op::kTmaLoad, here);
  emulator::bulk_load(dst, src, bytes, bar, change);
}
inline void cp_async_bulk_copy_cluster(uint32_t dst, uint32_t src, int bytes, uint32_t bar, int cta,
                                       Here here = Here::current()) {
  const Change change = machine().enter(Op::kTmaLoad, here);
  emulator::bulk_copy(dst, src, bytes, bar, cta, change);
}
inline void cp_async_bulk_store(float* dst, uint32_t src, int bytes, Here here = Here::current()) {
  const Change change = machine().enter(Op::kTmaStore, here);
  emulator::bulk_store(dst, src, bytes, false, change);
}
inline void cp_async_bulk_reduce_add(float* dst, uint32_t src, int bytes,
                                     Here here = Here::current()) {
  const Change change = machine().enter(Op::kTmaReduce, here);
  emulator::bulk_store(dst, src, bytes, true, change);
}

inline void cp_async_bulk_commit_group(Here here = Here::current()) {
  if (machine().enter(Op::kBulkCommit, here) == Change::kLeftOut) return;
  emulator::bulk_commit();
}
template <int kPending>
inline void cp_async_bulk_wait_group_read(Here here = Here::current()) {
  const Change change = machine().enter(Op::kBulkWaitRead, here);
  if (change == Change::kLeftOut) return;
  emulator::bulk_wait(kPending + (change == Change::kMore), true);
}
template <int kPending>
inline void cp_async_bulk_wait_group(Here here = Here::current()) {
  const Change change = machine().enter(Op::kBulkWait, here);
  if (change == Change::kLeftOut) return;
  emulator::bulk_wait(kPending + (change == Change::kMore), false);
}

}  // namespace sirdar::ptx
