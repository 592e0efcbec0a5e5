// From the facts about a CPU to a table of micro-kernels.
#pragma once

#include <sirdar/device.hpp>

#include "cpu/microkernel.h"

namespace sirdar::cpu {

// The best kernel set a device may run; `forced` names one instead ("": none) and is an error where
// the device lacks it or there are no kernels for it.
Result<Isa> choose_isa(const Device& device, const std::string& forced);

// Whether a device may run the kernels of a set, and whether this machine may: a plan may have been
// made for a recorded one.
Status check_isa(const Device& device, Isa isa);
Status check_isa_here(Isa isa);

// The kernels of an instruction set that choose_isa() returned on this machine.
const MicroKernels& kernels_for(Isa isa);

}  // namespace sirdar::cpu
