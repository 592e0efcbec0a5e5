// How many multiply-adds this machine does per second, measured: what percentages of a
// roofline are taken of.
#pragma once

#include <sirdar/device.hpp>
#include <sirdar/tensor.hpp>

namespace sirdar::cpu {

// FLOP/s of `num_threads` threads doing independent multiply-adds in registers, as the forward does
// them with `isa` (which must run here) for inputs of `dtype`, at once for about `seconds`; the
// smallest rate that all keep up together.
double measure_peak_flops(Isa isa, DType dtype, int num_threads, double seconds);

// Bytes per second that `num_threads` threads read together from memory far larger than the caches:
// 128 MiB each, and no more than `most_bytes` of all.
double measure_read_bandwidth(int num_threads, double seconds, int64_t most_bytes);

}  // namespace sirdar::cpu
