// The caller's device memory.
#pragma once

#include "cuda/context.h"

namespace sirdar::cuda {

// Sets `count` 32-bit words at `address` to 0, in the order of the stream.
Status clear_words(const ContextScope& scope, void* address, size_t count, Stream stream);

}  // namespace sirdar::cuda
