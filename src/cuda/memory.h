// The caller's device memory.
#pragma once

#include <sirdar/plan.hpp>

namespace sirdar::cuda {

// Sets `count` 32-bit words at `address`, in memory of `device`, to 0, in the order of the stream.
Status clear_words(int device, void* address, size_t count, Stream stream);

}  // namespace sirdar::cuda
