// From the facts about a CPU to a table of micro-kernels.
#pragma once

#include <sirdar/device.hpp>

#include "cpu/microkernel.h"

namespace sirdar::cpu {

// The best kernel set a device may run; `forced` names one instead ("": none) and is an error where
// the device lacks it or there are no kernels for it.
Result<Isa> choose_isa(const Device& device, const std::string& forced);

// The kernels of an instruction set that choose_isa() returned on this machine.
const MicroKernels& kernels_for(Isa isa);

}  // namespace sirdar::cpu
