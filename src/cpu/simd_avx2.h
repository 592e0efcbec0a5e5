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
inline F fms(F a, F b, F c) { return _mm256_fmsub_ps(a, b, c); }
inline F select(M m, F a, F b) { return _mm256_blendv_ps(b, a, m); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
inline F min(F a, F b) { return _mm256_min_ps(a, b); }
inline M less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
inline M equal(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
inline M less_int(I a, I b) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(b, a)); }
inline M equal_int(I a, I b) { return _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b)); }
inline M both(M a, M b) { return _mm256_and_ps(a, b); }
inline M either(M a, M b) { return _mm256_or_ps(a, b); }
inline M always() { return _mm256_castsi256_ps(_mm256_set1_epi32(-1)); }
inline I sub_int(I a, I b) { return _mm256_sub_epi32(a, b); }
inline I xor_int(I a, I b) { return _mm256_xor_si256(a, b); }
// Both halves of the 64-bit products, lane by lane.
inline void mul_wide(I a, uint32_t b, I& high, I& low) {
  const I factor = _mm256_set1_epi32(static_cast<int32_t>(b));
  const I even = _mm256_mul_epu32(a, factor);
  const I odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
inline I load_u16(const uint16_t* p) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline I load_u8(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline F load_fp16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void store_fp16(uint16_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline F to_float(I x) { return _mm256_cvtepi32_ps(x); }
inline F magnitude(F x) {
  return _mm256_castsi256_ps(
      _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)));
}
// The pieces of exp: what x is reduced from, x - n ln(2), and p * 2^n, whose exponent is in the low
// bits of `biased`: 0 at the lower end.
inline F power_input(F x) { return max(all(-88.3f), x); }
inline F minus_ln2_times(F x, F n) { return _mm256_fnmadd_ps(n, all(0.693147182f), x); }
inline F times_power(F p, F, F biased, F) {
  return mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(biased), 23)));
}
// Four elements from byte `at` on of each fourth row, one half of a vector after the other.
inline F load_quads(const void* const* rows, int64_t at) {
  const auto quad = [&](int r) {
    return _mm_loadu_ps(reinterpret_cast<const float*>(static_cast<const char*>(rows[r]) + at));
  };
  return _mm256_insertf128_ps(_mm256_castps128_ps256(quad(0)), quad(4), 1);
}
inline F load_quads_fp16(const void* const* rows, int64_t at) {
  const auto quad = [&](int r) {
    return _mm_loadl_epi64(
        reinterpret_cast<const __m128i*>(static_cast<const char*>(rows[r]) + at));
  };
  return _mm256_cvtph_ps(_mm_unpacklo_epi64(quad(0), quad(4)));
}
inline I load_quads_u8(const void* const* rows, int64_t at) {
  const auto quad = [&](int r) { return _mm_loadu_si32(static_cast<const char*>(rows[r]) + at); };
  return _mm256_cvtepu8_epi32(_mm_unpacklo_epi32(quad(0), quad(4)));
}
// x[r][4 q + c] <-> x[c][4 q + r]
__attribute__((always_inline)) inline void transpose_quads(F* x) {
  const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(x[0], x[1]));
  const __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(x[0], x[1]));
  const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(x[2], x[3]));
  const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(x[2], x[3]));
  x[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
  x[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
  x[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
  x[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
}
// x[c] = the c-th column of floats of 8 rows from byte `at` on.
__attribute__((always_inline)) inline void turn_floats(const void* const* rows, int64_t at, F* x) {
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    x[r] = load_quads(rows + r, at);
    x[4 + r] = load_quads(rows + r, at + 16);
  }
  transpose_quads(x);
  transpose_quads(x + 4);
}
// x[r][c] <-> x[c][r]
__attribute__((always_inline)) inline void transpose(F (&x)[8]) {
#pragma GCC unroll 8
  for (int n = 0; n < 8; n += 4) transpose_quads(x + n);
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    const F low = _mm256_permute2f128_ps(x[i], x[4 + i], 0x20);
    const F high = _mm256_permute2f128_ps(x[i], x[4 + i], 0x31);
    x[i] = low;
    x[4 + i] = high;
  }
}

// For expressions (expression_kernels.inl).
inline void store_int(int32_t* p, I x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
inline I as_int(F x) { return _mm256_castps_si256(x); }
inline F as_float(I x) { return _mm256_castsi256_ps(x); }
inline I truth(M m) { return _mm256_castps_si256(m); }
inline M holds(I x) { return _mm256_castsi256_ps(x); }
inline M less_equal(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
inline M not_equal(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_NEQ_UQ); }
inline I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
inline I mul_int(I a, I b) { return _mm256_mullo_epi32(a, b); }
inline I min_int(I a, I b) { return _mm256_min_epi32(a, b); }
inline I max_int(I a, I b) { return _mm256_max_epi32(a, b); }
inline I and_int(I a, I b) { return _mm256_and_si256(a, b); }
inline I or_int(I a, I b) { return _mm256_or_si256(a, b); }
inline I shift_left(I x, int n) { return _mm256_slli_epi32(x, n); }
inline I shift_right(I x, int n) { return _mm256_srai_epi32(x, n); }
inline F floor(F x) { return _mm256_floor_ps(x); }
inline F sqrt(F x) { return _mm256_sqrt_ps(x); }
inline F inverse(F x) { return div(all(1.0f), x); }
inline I joined(__m256d low, __m256d high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm256_cvttpd_epi32(low)),
                                 _mm256_cvttpd_epi32(high), 1);
}
inline __m256d low_doubles(I x) { return _mm256_cvtepi32_pd(_mm256_castsi256_si128(x)); }
inline __m256d high_doubles(I x) { return _mm256_cvtepi32_pd(_mm256_extracti128_si256(x, 1)); }
// Quotients of 32-bit integers are exact in double after truncation; 2^31 becomes -2^31.
inline I quotient(I a, I b) {
  return joined(_mm256_div_pd(low_doubles(a), low_doubles(b)),
                _mm256_div_pd(high_doubles(a), high_doubles(b)));
}
inline I scaled(I a, double inverse) {
  const __m256d factor = _mm256_set1_pd(inverse);
  return joined(_mm256_mul_pd(low_doubles(a), factor), _mm256_mul_pd(high_doubles(a), factor));
}
inline I gather(const int32_t* base, I offset) { return _mm256_i32gather_epi32(base, offset, 4); }
