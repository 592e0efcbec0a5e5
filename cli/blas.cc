#include "blas.h"

#include <dlfcn.h>

#include <cstdlib>
#include <sirdar/device.hpp>

namespace sirdar::cli {
namespace {

// Versions older than a processor do not know it and fall back to SSE kernels, six times slower: a
// comparison with those would flatter us. The wish of a caller who set the variable is kept.
void choose_core() {
  const Isa isa = Device::host().isa;
  const char* core = isa == Isa::avx512 || isa == Isa::avx512_bf16 ? "SkylakeX"
                     : isa == Isa::avx2                            ? "Haswell"
                                                                   : nullptr;
  if (core != nullptr) setenv("OPENBLAS_CORETYPE", core, 0);
}

template <class F>
F symbol(void* library, const char* name) {
  return reinterpret_cast<F>(dlsym(library, name));
}

Blas load() {
  choose_core();
  Blas result;
  void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return result;
  const auto sgemm = symbol<Blas::Sgemm>(library, "cblas_sgemm");
  result.set_num_threads = symbol<void (*)(int)>(library, "openblas_set_num_threads");
  const auto core = symbol<char* (*)()>(library, "openblas_get_corename");
  if (core != nullptr) result.core = core();
  if (result.set_num_threads != nullptr) result.sgemm = sgemm;
  return result;
}

}  // namespace

const Blas& blas() {
  static const Blas* const instance = new Blas(load());
  return *instance;
}

}  // namespace sirdar::cli
