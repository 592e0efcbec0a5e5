// OpenBLAS, if this machine has it: loaded when it is asked for, so that neither the library nor
// the command depends on it.
#pragma once

#include <string>

namespace sirdar::cli {

struct Blas {
  // cblas_sgemm of the C interface; enumerations are passed as the integers they stand for.
  using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float* a, int lda, const float* b, int ldb, float beta, float* c,
                         int ldc);
  Sgemm sgemm = nullptr;  // null: OpenBLAS was not found
  void (*set_num_threads)(int) = nullptr;
  std::string core;  // the processor it is tuned for, in its own words

  static constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;
};

const Blas& blas();

}  // namespace sirdar::cli
