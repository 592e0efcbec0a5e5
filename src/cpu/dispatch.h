// From the facts about a CPU to a table of micro-kernels.
#pragma once

#include <sirdar/device.hpp>
#include <sirdar/problem.hpp>

#include "cpu/microkernel.h"

namespace sirdar::cpu {

// The best kernel set a device may run; `forced` names one instead ("": none) and is an error where
// the device lacks it or there are no kernels for it. `user` is who is refused.
Result<Isa> choose_isa(const Device& device, const std::string& forced,
                       std::string_view user = "the CPU kernels");

// The set whose kernels compute a problem: avx512_bf16 has its own only for the forward of bf16,
// and elsewhere is avx512.
Result<Isa> choose_isa(const Device& device, const std::string& forced, const Problem& problem,
                       std::string_view user = "the CPU kernels");

// Whether a device may run the kernels of a set, and whether this machine may: a plan may have been
// made for a recorded one.
Status check_isa(const Device& device, Isa isa, std::string_view user);
Status check_isa_here(Isa isa, std::string_view user);

// The kernels of an instruction set that choose_isa() returned on this machine.
const MicroKernels& kernels_for(Isa isa);
// Those of the products of a forward pass, for rows of a format.
ProductKernels product_kernels_for(Isa isa, DType dtype);

// For tests on machines without AVX512_BF16: kernels that stand for it.
void emulate_avx512_bf16(const ProductKernels& kernels);

}  // namespace sirdar::cpu
