// mbarrier: barriers in shared memory that count arrivals and bytes. `bar` is a shared address, 8
// bytes, 8-byte aligned. A phase completes when the arrivals of init and all announced bytes are
// in.
#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

// One thread, before anyone uses the barrier; other threads learn of it by fence_mbarrier_init()
// (the async proxy and the cluster) and a block or cluster barrier.
SIRDAR_DEVICE void mbarrier_init(uint32_t bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

// One arrival; release at block scope. Any thread.
SIRDAR_DEVICE void mbarrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// One arrival that also announces `bytes` to come from asynchronous copies. Any thread.
SIRDAR_DEVICE void mbarrier_arrive_expect_tx(uint32_t bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}

// One arrival at the barrier of the same offset in block `cta` of the cluster. The plain form: a
// .release.cluster arrive costs hundreds of cycles, and orders nothing that TMA and wgmma need.
SIRDAR_DEVICE void mbarrier_arrive_cluster(uint32_t bar, int cta) {
  asm volatile(
      "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(bar),
      "r"(cta)
      : "memory");
}

// Has the phase of this parity completed? Acquire at block scope when true; may say false early.
SIRDAR_DEVICE bool mbarrier_try_wait(uint32_t bar, int parity) {
  uint32_t done;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}

// Waits for the phase of this parity. Acquire at block scope.
SIRDAR_DEVICE void mbarrier_wait(uint32_t bar, int parity) {
  while (!mbarrier_try_wait(bar, parity)) {
  }
}

// The same for a barrier that other blocks of the cluster arrive at.
SIRDAR_DEVICE void mbarrier_wait_cluster(uint32_t bar, int parity) {
  uint32_t done;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(bar), "r"(parity)
        : "memory");
  } while (done == 0);
}

}  // namespace sirdar::ptx
