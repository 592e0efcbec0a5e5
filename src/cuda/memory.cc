#include "cuda/memory.h"

#include "cuda/context.h"

namespace sirdar::cuda {

Status clear_words(const ContextScope& scope, void* address, size_t count, Stream stream) {
  const Driver& api = scope.driver();
  return check(api, api.memset32(address, 0, count, static_cast<CuStream>(stream)),
               "clearing the workspace");
}

}  // namespace sirdar::cuda
