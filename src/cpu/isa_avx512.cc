// Micro-kernels for AVX-512, in a target region: the rest of the library stays at the baseline.
#include "cpu/microkernel_backward.h"

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

#include "cpu/backward_kernels.inl"

}  // namespace
}  // namespace sirdar::cpu

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace sirdar::cpu {

constinit const MicroKernels kAvx512Kernels = make_table(Isa::avx512);
constinit const BackwardKernels kAvx512Backward = make_backward_table();

}  // namespace sirdar::cpu

#endif
