// Tensor maps for the emulated machine.
#pragma once

#include <cstdint>

#include "tensor_map_fields.h"

namespace sirdar::emulator {

// Stands where a GPU has cuTensorMapEncodeTiled, with its numbers and its arguments, and fills the
// 128 bytes of `map`. What a driver refuses is checked before, by the library (cuda/tensor_map.h);
// here 1 (an invalid value) is returned for what is not modelled, and 0 otherwise.
int encode_tensor_map(void* map, int dtype, uint32_t rank, void* base, const uint64_t* dims,
                      const uint64_t* stride_bytes, const uint32_t* box, const uint32_t* steps,
                      int interleave, int swizzle, int l2_promotion, int fill);

}  // namespace sirdar::emulator
