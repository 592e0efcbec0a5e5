// The kernels of every instruction set that this machine can run.
#pragma once

#include <vector>

#include "cpu/dispatch.h"

namespace sirdar::cpu {

inline std::vector<const MicroKernels*> tables() {
  const Device host = Device::host();
  std::vector<const MicroKernels*> result;
  for (const char* isa : {"scalar", "neon", "avx2", "avx512"}) {
    if (const Result<Isa> usable = choose_isa(host, isa); usable.ok())
      result.push_back(&kernels_for(usable.value()));
  }
  return result;
}

}  // namespace sirdar::cpu
