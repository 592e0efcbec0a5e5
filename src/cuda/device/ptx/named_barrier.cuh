// Barriers of a block by number, 0 to 15; number 0 is syncthreads(). Counts are threads, multiples
// of 32. Whole warps.
#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

SIRDAR_DEVICE void barrier_sync(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

SIRDAR_DEVICE void barrier_arrive(int id, int num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

SIRDAR_DEVICE void syncthreads() { asm volatile("bar.sync 0;" ::: "memory"); }

SIRDAR_DEVICE void syncwarp() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// All threads of all blocks of the cluster: release, then acquire.
SIRDAR_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

}  // namespace sirdar::ptx
