// Fences between threads and between proxies.
#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

// Makes mbarrier_init known to the async proxy and to the cluster. The initialising thread.
SIRDAR_DEVICE void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// This thread's ordinary writes to shared memory become visible to TMA and wgmma. Every writing
// thread, before the barrier that tells the issuing thread.
SIRDAR_DEVICE void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The same of global memory: between bulk copies and accesses to flags that say they are done. Of
// any memory it would wait for all of the thread's accesses, as a fence of the GPU does.
SIRDAR_DEVICE void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Orders this thread's global accesses for the whole GPU.
SIRDAR_DEVICE void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

}  // namespace sirdar::ptx
