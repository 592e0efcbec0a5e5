#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

inline void fence_mbarrier_init(Here here = Here::current()) {
  if (machine().enter(Op::kFenceMbarrierInit, here) == Change::kLeftOut) return;
  emulator::Fiber& self = machine().fiber();
  self.init_fences.push_back(self.now());
  self.advance();
}

inline void fence_proxy_async_shared(Here here = Here::current()) {
  if (machine().enter(Op::kFenceProxyAsync, here) == Change::kLeftOut) return;
  emulator::Fiber& self = machine().fiber();
  self.proxy_fences.push_back(self.now());
  self.loads.forget();
  self.advance();
}

inline void fence_proxy_async_global(Here here = Here::current()) {
  machine().enter(Op::kFenceProxyAsync, here);  // accesses to global memory are not ordered here
}

inline void fence_gpu(Here here = Here::current()) {
  machine().enter(Op::kFenceGpu, here);  // a release hands on what its thread knows as it is
}

}  // namespace sirdar::ptx
