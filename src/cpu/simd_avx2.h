// The vector layer over AVX2 with FMA; simd_scalar.h describes the names.
using F = __m256;
using I = __m256i;
using M = __m256;  // all bits of a lane, or none

constexpr int kLanes = 8;
constexpr int kRows = 6;  // 12 accumulators, 2 vectors and 1 broadcast of 16 registers

inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
inline I load_int(const int32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline F all(float x) { return _mm256_set1_ps(x); }
inline I all_int(int32_t x) { return _mm256_set1_epi32(x); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F select(M m, F a, F b) { return _mm256_blendv_ps(b, a, m); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
inline M less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
inline M equal(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
inline M less_int(I a, I b) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(b, a)); }
inline M equal_int(I a, I b) { return _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b)); }
inline M both(M a, M b) { return _mm256_and_ps(a, b); }
inline M always() { return _mm256_castsi256_ps(_mm256_set1_epi32(-1)); }
inline I sub_int(I a, I b) { return _mm256_sub_epi32(a, b); }
inline F to_float(I x) { return _mm256_cvtepi32_ps(x); }
inline F magnitude(F x) {
  return _mm256_castsi256_ps(
      _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)));
}
inline F exponent_from_low_bits(F x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23));
}
// x * log2(e) - n for the integer n next to it. The part of log2(e) that a float cannot hold
// matters far below 0, where x is large and its error would be the weight's.
inline F log2_fraction(F x, F n) {
  return fma(x, all(1.92596299e-8f), _mm256_fmsub_ps(x, all(1.44269504f), n));
}
