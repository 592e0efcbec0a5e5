#include "cuda/memory.h"

#include "cuda/context.h"

namespace sirdar::cuda {

Status clear_words(int device, void* address, size_t count, Stream stream) {
  const Result<const Driver*> found = driver();
  if (!found.ok()) return found.status();
  const Driver& api = *found.value();
  const Result<ContextScope> scope = ContextScope::of_stream(api, device, stream);
  if (!scope.ok()) return scope.status();
  return check(api, api.memset32(address, 0, count, static_cast<CuStream>(stream)),
               "clearing the workspace");
}

}  // namespace sirdar::cuda
