// The few functions of the device's ptx/ that the expression language stands on, in plain C++: the
// emitted text is compiled for the host against these.
#pragma once

#include <cstdint>

#define SIRDAR_DEVICE inline
#define SIRDAR_UNROLL
#define SIRDAR_NO_UNROLL
