#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

inline void meet_at(int id, int num_threads, bool sync, Change change) {
  if (change == Change::kLeftOut) return;
  if (change == Change::kMore) num_threads += 32;
  if (change == Change::kLess) num_threads -= 32;
  if (change == Change::kHalf) num_threads /= 2;
  if (change == Change::kOther) id = id == 15 ? 14 : id + 1;
  machine().named_barrier(id, num_threads, sync);
  if (change == Change::kTwice) machine().named_barrier(id, num_threads, sync);
}

inline void barrier_sync(int id, int num_threads, Here here = Here::current()) {
  const Change change = machine().enter(Op::kBarrierSync, here, id);
  meet_at(id, num_threads, true, change);
}

inline void barrier_arrive(int id, int num_threads, Here here = Here::current()) {
  const Change change = machine().enter(Op::kBarrierArrive, here, id);
  meet_at(id, num_threads, false, change);
}

inline void syncthreads(Here here = Here::current()) {
  const Change change = machine().enter(Op::kSyncThreads, here);
  meet_at(0, (machine().launch().threads + 31) / 32 * 32, true, change);
}

inline void syncwarp(Here here = Here::current()) {
  if (machine().enter(Op::kSyncWarp, here) == Change::kLeftOut) return;
  machine().meet(~0u, 0, true, [](emulator::Fiber* const*) {});
}

inline void cluster_sync(Here here = Here::current()) {
  if (machine().enter(Op::kClusterArrive, here) == Change::kLeftOut) return;
  machine().cluster_arrive();
  if (machine().enter(Op::kClusterWait, here) == Change::kLeftOut) return;
  machine().cluster_wait();
}

}  // namespace sirdar::ptx
