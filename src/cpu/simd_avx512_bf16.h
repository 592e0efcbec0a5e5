// What AVX512_BF16 adds to simd_avx512.h. A word of a vector holds two bf16, the first in its low
// half. Neither instruction heeds the rounding mode or the modes that flush: they round to nearest
// even and take subnormal numbers for 0.

// sum + the products of both halves: the high ones are added first, each with one rounding.
inline F dot_pairs(F sum, F a, F b) {
  return _mm512_dpbf16_ps(sum, bits_as<__m512bh>(a), bits_as<__m512bh>(b));
}

// Two floats rounded to bf16, in the low and the high half.
inline F pairs_of(F low, F high) {
  using Places = int16_t __attribute__((vector_size(64)));
  const Places places = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                         8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i halves = bits_as<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  return bits_as<F>(_mm512_permutexvar_epi16(bits_as<__m512i>(places), halves));
}
