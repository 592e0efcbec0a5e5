// Products of bf16 for AVX-512 with AVX512_BF16, in a target region: the rest of the library stays
// at the baseline.
#include "cpu/microkernel.h"

#if defined(__x86_64__)

#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(                                                               \
    __attribute__((target("avx512bf16,avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c"))), \
    apply_to = function)
#else
// g++ 12 takes the undefined operand inside its own unmasked intrinsics for our mistake.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC push_options
#pragma GCC target("avx512bf16,avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c")
#endif

namespace sirdar::cpu {
namespace {

#include "cpu/simd_avx512.h"

#include "cpu/kernels.inl"

#include "cpu/simd_avx512_bf16.h"

#include "cpu/bf16_kernels.inl"

}  // namespace
}  // namespace sirdar::cpu

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace sirdar::cpu {

constinit const ProductKernels kAvx512Bf16Products = make_products();

}  // namespace sirdar::cpu

#endif
