// The vector layer over AVX-512 (F, DQ, BW, VL); simd_scalar.h describes the names.
using F = __m512;
using I = __m512i;
using M = __mmask16;

constexpr int kLanes = 16;
constexpr int kRows = 8;  // 16 accumulators: two FMA ports of latency 4 want at least 8

inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline I load_int(const int32_t* p) { return _mm512_loadu_si512(p); }
inline F all(float x) { return _mm512_set1_ps(x); }
inline I all_int(int32_t x) { return _mm512_set1_epi32(x); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F select(M m, F a, F b) { return _mm512_mask_blend_ps(m, b, a); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline M equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline M less_int(I a, I b) { return _mm512_cmplt_epi32_mask(a, b); }
inline M equal_int(I a, I b) { return _mm512_cmpeq_epi32_mask(a, b); }
inline M both(M a, M b) { return static_cast<M>(a & b); }
inline M always() { return static_cast<M>(0xffff); }
inline I sub_int(I a, I b) { return _mm512_sub_epi32(a, b); }
inline F to_float(I x) { return _mm512_cvtepi32_ps(x); }
inline F magnitude(F x) { return _mm512_abs_ps(x); }
inline F exponent_from_low_bits(F x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 23));
}
// x * log2(e) - n for the integer n next to it. The part of log2(e) that a float cannot hold
// matters far below 0, where x is large and its error would be the weight's.
inline F log2_fraction(F x, F n) {
  return fma(x, all(1.92596299e-8f), _mm512_fmsub_ps(x, all(1.44269504f), n));
}
