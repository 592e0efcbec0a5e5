// Results that a float could only hold as denormals become 0 while one of these lives. Each costs
// an x86 processor over a hundred cycles, and weights that decay with the distance (ALiBi) make
// sums that start from them: whole blocks of keys at a quarter of the speed. Denormal inputs are
// read.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace sirdar::cpu {

class FlushDenormals {
 public:
#if defined(__SSE__)
  explicit FlushDenormals(bool flush) : before_(_mm_getcsr()) {
    if (flush) _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON);
  }
  ~FlushDenormals() { _mm_setcsr(before_); }
#else
  explicit FlushDenormals(bool) {}
  ~FlushDenormals() {}
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

#if defined(__SSE__)
 private:
  unsigned before_;  // the control word of this thread
#endif
};

}  // namespace sirdar::cpu
