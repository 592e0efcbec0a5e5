#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

// Faults are planted by barrier as well: helpers that wrap a wait hide the lines of their callers.
inline int64_t key_of(uint32_t bar) { return bar & ((1u << emulator::kRankShift) - 1); }

inline void mbarrier_init(uint32_t bar, int count, Here here = Here::current()) {
  const Change change = machine().enter(Op::kMbarrierInit, here, key_of(bar));
  if (change == Change::kLeftOut) return;
  machine().init_mbarrier(bar, count + (change == Change::kMore) - (change == Change::kLess));
}

inline void mbarrier_arrive(uint32_t bar, Here here = Here::current()) {
  const Change change = machine().enter(Op::kMbarrierArrive, here, key_of(bar));
  if (change == Change::kLeftOut) return;
  machine().arrive(machine().mbarrier(bar, true), 0);
  if (change == Change::kTwice) machine().arrive(machine().mbarrier(bar, true), 0);
}

inline void mbarrier_arrive_expect_tx(uint32_t bar, int bytes, Here here = Here::current()) {
  const Change change = machine().enter(Op::kMbarrierExpect, here, key_of(bar));
  if (change == Change::kLeftOut) return;
  if (change == Change::kMore) bytes += 16;
  if (change == Change::kLess) bytes -= 16;
  if (change == Change::kHalf) bytes /= 2;
  machine().arrive(machine().mbarrier(bar, true), bytes);
}

inline void mbarrier_arrive_cluster(uint32_t bar, int cta, Here here = Here::current()) {
  const Change change = machine().enter(Op::kMbarrierArriveCluster, here, key_of(bar));
  if (change == Change::kLeftOut) return;
  const uint32_t remote = static_cast<uint32_t>(key_of(bar)) | static_cast<uint32_t>(cta)
                                                                   << emulator::kRankShift;
  machine().arrive(machine().mbarrier(remote, false), 0);
  if (change == Change::kTwice) machine().arrive(machine().mbarrier(remote, false), 0);
}

inline void wait_for(uint32_t bar, int parity, bool cluster, Change change) {
  if (change == Change::kLeftOut) return;
  if (change == Change::kFlipped) parity ^= 1;
  machine().wait(machine().mbarrier(bar, true), static_cast<uint32_t>(parity), cluster);
}

// Says false at random, as the device does when time is up; else it waits.
inline bool mbarrier_try_wait(uint32_t bar, int parity, Here here = Here::current()) {
  const Change change = machine().enter(Op::kMbarrierWait, here, key_of(bar));
  if (!machine().launch().calm && machine().chance(0.25)) {
    machine().yield();
    return false;
  }
  wait_for(bar, parity, false, change);
  return true;
}

inline void mbarrier_wait(uint32_t bar, int parity, Here here = Here::current()) {
  const Change change = machine().enter(Op::kMbarrierWait, here, key_of(bar));
  emulator::loop_waited();
  wait_for(bar, parity, false, change);
}

inline void mbarrier_wait_cluster(uint32_t bar, int parity, Here here = Here::current()) {
  const Change change = machine().enter(Op::kMbarrierWait, here, key_of(bar));
  emulator::loop_waited();
  wait_for(bar, parity, change != Change::kOther, change);
}

}  // namespace sirdar::ptx
