// Micro-kernels for the baseline the library is compiled for.
#include "cpu/microkernel_backward.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace sirdar::cpu {
namespace {

constexpr bool kIsNeon = false;
#include "cpu/simd_scalar.h"

#include "cpu/kernels.inl"

#include "cpu/backward_kernels.inl"

}  // namespace

constinit const MicroKernels kScalarKernels = make_table(Isa::scalar);
constinit const BackwardKernels kScalarBackward = make_backward_table();

}  // namespace sirdar::cpu
