// Kernels that stand for avx512_bf16 in tests. x86-64 only.
#pragma once

#include "cpu/dispatch.h"

namespace sirdar::cpu {

extern const ProductKernels kEmulatedBf16Products;

// The instructions themselves; only AVX-512 where tests emulate them.
bool has_avx512_bf16();

}  // namespace sirdar::cpu
