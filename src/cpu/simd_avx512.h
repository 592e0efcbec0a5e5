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
inline F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
inline F select(M m, F a, F b) { return _mm512_mask_blend_ps(m, b, a); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline M equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline M less_int(I a, I b) { return _mm512_cmplt_epi32_mask(a, b); }
inline M equal_int(I a, I b) { return _mm512_cmpeq_epi32_mask(a, b); }
inline M both(M a, M b) { return static_cast<M>(a & b); }
inline M either(M a, M b) { return static_cast<M>(a | b); }
inline M always() { return static_cast<M>(0xffff); }
inline I sub_int(I a, I b) { return _mm512_sub_epi32(a, b); }
inline I xor_int(I a, I b) { return _mm512_xor_si512(a, b); }
// Both halves of the 64-bit products, lane by lane.
inline void mul_wide(I a, uint32_t b, I& high, I& low) {
  const I factor = _mm512_set1_epi32(static_cast<int32_t>(b));
  const I even = _mm512_mul_epu32(a, factor);
  const I odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), factor);
  high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}
inline I load_u16(const uint16_t* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline I load_u8(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline F load_fp16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store_fp16(uint16_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F to_float(I x) { return _mm512_cvtepi32_ps(x); }
inline F magnitude(F x) { return _mm512_abs_ps(x); }
// The pieces of exp: what x is reduced from, x - n ln(2), and p * 2^n or 0 where x is below -87.68.
inline F power_input(F x) { return x; }
inline F minus_ln2_times(F x, F n) { return _mm512_fnmadd_ps(n, all(0.693147182f), x); }
inline F times_power(F p, F n, F, F x) {
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, all(-87.68f), _CMP_NLT_UQ), p, n);
}
// Four elements from byte `at` on of each fourth row, one quarter of a vector after the other.
inline F load_quads(const void* const* rows, int64_t at) {
  const auto quad = [&](int r) {
    return _mm_loadu_ps(reinterpret_cast<const float*>(static_cast<const char*>(rows[r]) + at));
  };
  F x = _mm512_castps128_ps512(quad(0));
  x = _mm512_mask_broadcast_f32x4(x, 0x00f0, quad(4));
  x = _mm512_mask_broadcast_f32x4(x, 0x0f00, quad(8));
  return _mm512_mask_broadcast_f32x4(x, 0xf000, quad(12));
}
inline __m256i load_quads_16(const void* const* rows, int64_t at) {
  const auto quad = [&](int r) {
    return _mm_loadl_epi64(
        reinterpret_cast<const __m128i*>(static_cast<const char*>(rows[r]) + at));
  };
  __m256i x = _mm256_castsi128_si256(quad(0));
  x = _mm256_mask_broadcastq_epi64(x, 2, quad(4));
  x = _mm256_mask_broadcastq_epi64(x, 4, quad(8));
  return _mm256_mask_broadcastq_epi64(x, 8, quad(12));
}
inline F load_quads_fp16(const void* const* rows, int64_t at) {
  return _mm512_cvtph_ps(load_quads_16(rows, at));
}
inline I load_quads_u8(const void* const* rows, int64_t at) {
  const auto quad = [&](int r) { return _mm_loadu_si32(static_cast<const char*>(rows[r]) + at); };
  __m128i x = quad(0);
  x = _mm_mask_broadcastd_epi32(x, 2, quad(4));
  x = _mm_mask_broadcastd_epi32(x, 4, quad(8));
  return _mm512_cvtepu8_epi32(_mm_mask_broadcastd_epi32(x, 8, quad(12)));
}
// x[r][4 q + c] <-> x[c][4 q + r]
__attribute__((always_inline)) inline void transpose_quads(F* x) {
  const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(x[0], x[1]));
  const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(x[0], x[1]));
  const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(x[2], x[3]));
  const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(x[2], x[3]));
  x[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
  x[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
  x[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
  x[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
}
// x[c] = the c-th column of floats of 16 rows from byte `at` on. Halves of rows are joined as they
// are loaded; quarters would be loaded four times a line, and whole rows need a third more
// shuffles.
__attribute__((always_inline)) inline void turn_floats(const void* const* rows, int64_t at, F* x) {
  const auto half = [&](int r, int64_t from) {
    return _mm256_loadu_pd(
        reinterpret_cast<const double*>(static_cast<const char*>(rows[r]) + from));
  };
  const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
  const __m512i high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
#pragma GCC unroll 2
  for (int64_t n = 0; n < 2; ++n, at += 32, x += 8) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const __m512d a =
          _mm512_mask_broadcast_f64x4(_mm512_castpd256_pd512(half(r, at)), 0xf0, half(r + 8, at));
      const __m512d b = _mm512_mask_broadcast_f64x4(_mm512_castpd256_pd512(half(r + 4, at)), 0xf0,
                                                    half(r + 12, at));
      x[r] = _mm512_castpd_ps(_mm512_permutex2var_pd(a, low, b));
      x[4 + r] = _mm512_castpd_ps(_mm512_permutex2var_pd(a, high, b));
    }
    transpose_quads(x);
    transpose_quads(x + 4);
  }
}
// x[r][c] <-> x[c][r]
__attribute__((always_inline)) inline void transpose(F (&x)[16]) {
  F y[16];
#pragma GCC unroll 8
  for (int n = 0; n < 16; n += 4) transpose_quads(x + n);
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_shuffle_f32x4(x[i], x[4 + i], 0x88);
    y[4 + i] = _mm512_shuffle_f32x4(x[i], x[4 + i], 0xdd);
    y[8 + i] = _mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0x88);
    y[12 + i] = _mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0xdd);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_f32x4(y[i], y[8 + i], 0x88);
    x[8 + i] = _mm512_shuffle_f32x4(y[i], y[8 + i], 0xdd);
    x[4 + i] = _mm512_shuffle_f32x4(y[4 + i], y[12 + i], 0x88);
    x[12 + i] = _mm512_shuffle_f32x4(y[4 + i], y[12 + i], 0xdd);
  }
}

// For expressions (expression_kernels.inl).
inline void store_int(int32_t* p, I x) { _mm512_storeu_si512(p, x); }
inline I as_int(F x) { return _mm512_castps_si512(x); }
inline F as_float(I x) { return _mm512_castsi512_ps(x); }
inline I truth(M m) { return _mm512_movm_epi32(m); }
inline M holds(I x) { return _mm512_movepi32_mask(x); }
inline M less_equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
inline M not_equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); }
inline I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
inline I mul_int(I a, I b) { return _mm512_mullo_epi32(a, b); }
inline I min_int(I a, I b) { return _mm512_min_epi32(a, b); }
inline I max_int(I a, I b) { return _mm512_max_epi32(a, b); }
inline I and_int(I a, I b) { return _mm512_and_si512(a, b); }
inline I or_int(I a, I b) { return _mm512_or_si512(a, b); }
inline I shift_left(I x, int n) { return _mm512_slli_epi32(x, static_cast<unsigned>(n)); }
inline I shift_right(I x, int n) { return _mm512_srai_epi32(x, static_cast<unsigned>(n)); }
inline F floor(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
inline F sqrt(F x) { return _mm512_sqrt_ps(x); }
// A third of a division's time: 14 bits, and twice as many by one step of Newton's.
inline F inverse(F x) {
  const F guess = _mm512_rcp14_ps(x);
  return fma(guess, _mm512_fnmadd_ps(x, guess, all(1.0f)), guess);
}
inline I joined(__m512d low, __m512d high) {
  return _mm512_inserti32x8(_mm512_castsi256_si512(_mm512_cvttpd_epi32(low)),
                            _mm512_cvttpd_epi32(high), 1);
}
inline __m512d low_doubles(I x) { return _mm512_cvtepi32_pd(_mm512_castsi512_si256(x)); }
inline __m512d high_doubles(I x) { return _mm512_cvtepi32_pd(_mm512_extracti32x8_epi32(x, 1)); }
// Quotients of 32-bit integers are exact in double after truncation; 2^31 becomes -2^31.
inline I quotient(I a, I b) {
  return joined(_mm512_div_pd(low_doubles(a), low_doubles(b)),
                _mm512_div_pd(high_doubles(a), high_doubles(b)));
}
inline I scaled(I a, double inverse) {
  const __m512d factor = _mm512_set1_pd(inverse);
  return joined(_mm512_mul_pd(low_doubles(a), factor), _mm512_mul_pd(high_doubles(a), factor));
}
inline I gather(const int32_t* base, I offset) { return _mm512_i32gather_epi32(offset, base, 4); }
