// The kernels of avx512_bf16 over emulated instructions. Where a machine has AVX-512 but not
// AVX512_BF16, every test program takes them for it, and so tests all that surrounds the
// instructions.
#include "support/emulated_bf16.h"

#if defined(__x86_64__)

#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(                                                    \
    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c"))), \
    apply_to = function)
#else
// g++ 12 takes the undefined operand inside its own unmasked intrinsics for our mistake.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c")
#endif

namespace sirdar::cpu {
namespace {

#include "cpu/simd_avx512.h"

#include "cpu/kernels.inl"

#include "support/simd_bf16_emulated.h"

#include "cpu/bf16_kernels.inl"

}  // namespace
}  // namespace sirdar::cpu

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace sirdar::cpu {

constinit const ProductKernels kEmulatedBf16Products = make_products();

bool has_avx512_bf16() { return __builtin_cpu_supports("avx512bf16") != 0; }

namespace {

// Before main: the host is looked at once.
const bool is_emulated = [] {
  if (!has_avx512_bf16()) emulate_avx512_bf16(kEmulatedBf16Products);
  return true;
}();

}  // namespace
}  // namespace sirdar::cpu

#endif
