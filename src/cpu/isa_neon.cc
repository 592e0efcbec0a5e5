// Micro-kernels for NEON, which every 64-bit Arm has. Tested under emulation only, never timed.
#include "cpu/microkernel_backward.h"

#if defined(__aarch64__)

#include <arm_neon.h>

namespace sirdar::cpu {
namespace {

constexpr bool kIsNeon = true;
#include "cpu/simd_scalar.h"

#include "cpu/kernels.inl"

#include "cpu/backward_kernels.inl"

}  // namespace

constinit const MicroKernels kNeonKernels = make_table(Isa::neon);
constinit const BackwardKernels kNeonBackward = make_backward_table();

}  // namespace sirdar::cpu

#endif
