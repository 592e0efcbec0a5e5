// Micro-kernels for AVX2 with FMA, in a target region: the rest of the library stays at the
// baseline.
#include "cpu/microkernel_backward.h"

#if defined(__x86_64__)

#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace sirdar::cpu {
namespace {

#include "cpu/simd_avx2.h"

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

constinit const MicroKernels kAvx2Kernels = make_table(Isa::avx2);
constinit const BackwardKernels kAvx2Backward = make_backward_table();

}  // namespace sirdar::cpu

#endif
