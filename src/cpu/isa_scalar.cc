// Micro-kernels for the baseline the library is compiled for.
#include "cpu/microkernel.h"

namespace sirdar::cpu {
namespace {

#include "cpu/simd_scalar.h"

#include "cpu/kernels.inl"

}  // namespace

constinit const MicroKernels kScalarKernels = make_table(Isa::scalar);

}  // namespace sirdar::cpu
