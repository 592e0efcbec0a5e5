// The vector layer for machines without a kernel of their own: four lanes that any compiler maps to
// what the baseline has (SSE2, NEON) or to plain scalars. Multiply-add is two roundings here, and
// one for NEON (kIsNeon), whose 32 registers hold larger blocks.
// Each simd_*.h defines the same names, inside the namespace of its isa_*.cc.
using F = float __attribute__((vector_size(16)));    // floats
using I = int32_t __attribute__((vector_size(16)));  // integers
using M = int32_t __attribute__((vector_size(16)));  // a truth per lane

constexpr int kLanes = 4;
// Rows of a register block: kRows * 2 accumulators, 2 vectors, 1 broadcast.
constexpr int kRows = kIsNeon ? 8 : 4;

inline F load(const float* p) {
  F x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}
inline void store(float* p, F x) { __builtin_memcpy(p, &x, sizeof(x)); }
inline I load_int(const int32_t* p) {
  I x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}
inline F all(float x) { return F{x, x, x, x}; }
inline I all_int(int32_t x) { return I{x, x, x, x}; }
inline F add(F a, F b) { return a + b; }
inline F sub(F a, F b) { return a - b; }
inline F mul(F a, F b) { return a * b; }
inline F div(F a, F b) { return a / b; }
inline F fma(F a, F b, F c) {
#if defined(__aarch64__)
  if constexpr (kIsNeon) return vfmaq_f32(c, a, b);
#endif
  return a * b + c;
}
inline F fms(F a, F b, F c) {
#if defined(__aarch64__)
  if constexpr (kIsNeon) return vnegq_f32(vfmsq_f32(c, a, b));
#endif
  return a * b - c;
}
inline F select(M m, F a, F b) { return m ? a : b; }
// b where either is a NaN: the order of the operands decides whether a NaN passes.
inline F max(F a, F b) { return select(a > b, a, b); }
inline F min(F a, F b) { return select(a < b, a, b); }
inline M less(F a, F b) { return a < b; }
inline M equal(F a, F b) { return a == b; }
inline M less_int(I a, I b) { return a < b; }
inline M equal_int(I a, I b) { return a == b; }
inline M both(M a, M b) { return a & b; }
inline M either(M a, M b) { return a | b; }
inline M always() { return M{-1, -1, -1, -1}; }
using U = uint32_t __attribute__((vector_size(16)));  // integers wrap
inline I sub_int(I a, I b) {
  return reinterpret_cast<I>(reinterpret_cast<U>(a) - reinterpret_cast<U>(b));
}
inline I xor_int(I a, I b) { return a ^ b; }
// Both halves of the 64-bit products, lane by lane.
inline void mul_wide(I a, uint32_t b, I& high, I& low) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint64_t product = uint64_t{static_cast<uint32_t>(a[lane])} * b;
    high[lane] = static_cast<int32_t>(product >> 32);
    low[lane] = static_cast<int32_t>(product & 0xffffffffu);
  }
}
// fp16 by bit arithmetic. Every float on the way is normal, so that modes which flush subnormals
// change nothing.
using U = uint32_t __attribute__((vector_size(16)));
inline I load_u16(const uint16_t* p) { return I{p[0], p[1], p[2], p[3]}; }
inline I load_u8(const uint8_t* p) { return I{p[0], p[1], p[2], p[3]}; }
inline F load_fp16(const uint16_t* p) {
  uint16_t __attribute__((vector_size(8))) narrow;
  __builtin_memcpy(&narrow, p, sizeof(narrow));
  const U bits = __builtin_convertvector(narrow, U), size = (bits & 0x7fffu) << 13;
  // Exponents are biased by 15, those of a float by 127.
  U result = size + (112u << 23);
  const U one_above = size + (113u << 23);
  F subnormal;
  __builtin_memcpy(&subnormal, &one_above, sizeof(subnormal));
  subnormal = subnormal - all(0x1p-14f);
  U subnormal_bits;
  __builtin_memcpy(&subnormal_bits, &subnormal, sizeof(subnormal_bits));
  result = size < 1u << 23 ? subnormal_bits : result;
  result = size >= 31u << 23 ? size | 0x7f800000u : result;
  result |= (bits & 0x8000u) << 16;
  F x;
  __builtin_memcpy(&x, &result, sizeof(x));
  return x;
}
inline void store_fp16(uint16_t* p, F x) {
  U bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  const U size = bits & 0x7fffffffu;
  U result = (size - (112u << 23) + 0xfffu + (size >> 13 & 1u)) >> 13;
  // Below 2^-14 the addition of 1/2 rounds at the last bit of a subnormal, 2^-24.
  F sum;
  __builtin_memcpy(&sum, &size, sizeof(sum));
  sum = sum + all(0.5f);
  U sum_bits;
  __builtin_memcpy(&sum_bits, &sum, sizeof(sum_bits));
  result = size < 113u << 23 ? sum_bits - 0x3f000000u : result;
  result = size >= 143u << 23 ? U{} + 0x7c00u : result;
  result = size > 0x7f800000u ? 0x7e00u | (size >> 13 & 0x1ffu) : result;
  result |= bits >> 16 & 0x8000u;
  const auto narrow = __builtin_convertvector(result, uint16_t __attribute__((vector_size(8))));
  __builtin_memcpy(p, &narrow, sizeof(narrow));
}
inline F to_float(I x) { return __builtin_convertvector(x, F); }
inline F magnitude(F x) {
  I bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  bits &= 0x7fffffff;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}
// The low nine bits of x as sign and exponent of a float.
// The pieces of exp: what x is reduced from, x - n ln(2) without the rounding error of the product
// (n
// * kHigh is exact, and so is the first difference), and p * 2^n, whose exponent is in the low bits
// of `biased`: 0 at the lower end.
inline F power_input(F x) { return max(all(-88.3f), x); }
inline F minus_ln2_times(F x, F n) {
  constexpr float kHigh = 0.693359375f, kLow = -2.12194440e-4f;
  return sub(sub(x, mul(n, all(kHigh))), mul(n, all(kLow)));
}
inline F times_power(F p, F, F biased, F) {
  uint32_t __attribute__((vector_size(16))) bits;
  __builtin_memcpy(&bits, &biased, sizeof(bits));
  bits <<= 23;
  F power;
  __builtin_memcpy(&power, &bits, sizeof(power));
  return mul(p, power);
}
// x[r][c] <-> x[c][r]
inline void transpose(F (&x)[4]) {
  const F a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
  const F b = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
  const F c = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
  const F d = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
  x[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  x[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  x[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  x[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}
// What wider vectors do for each four lanes: here there are no more.
inline void transpose_quads(F* x) {
  F y[4] = {x[0], x[1], x[2], x[3]};
  transpose(y);
  for (int r = 0; r < 4; ++r) x[r] = y[r];
}
inline const void* byte_of(const void* const* rows, int64_t at) {
  return static_cast<const char*>(rows[0]) + at;
}
inline F load_quads(const void* const* rows, int64_t at) {
  return load(static_cast<const float*>(byte_of(rows, at)));
}
// x[c] = the c-th column of floats of 4 rows from byte `at` on.
inline void turn_floats(const void* const* rows, int64_t at, F* x) {
  for (int r = 0; r < 4; ++r) x[r] = load_quads(rows + r, at);
  transpose_quads(x);
}
inline F load_quads_fp16(const void* const* rows, int64_t at) {
  return load_fp16(static_cast<const uint16_t*>(byte_of(rows, at)));
}
inline I load_quads_u8(const void* const* rows, int64_t at) {
  return load_u8(static_cast<const uint8_t*>(byte_of(rows, at)));
}

// For expressions (expression_kernels.inl).
inline void store_int(int32_t* p, I x) { __builtin_memcpy(p, &x, sizeof(x)); }
inline I as_int(F x) {
  I bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline F as_float(I bits) {
  F x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}
// A truth as 0 or -1, and back.
inline I truth(M m) { return m; }
inline M holds(I x) { return x < 0; }
// b where either is a NaN.
inline M less_equal(F a, F b) { return a <= b; }
inline M not_equal(F a, F b) { return a != b; }  // true for a NaN
inline I add_int(I a, I b) {
  return reinterpret_cast<I>(reinterpret_cast<U>(a) + reinterpret_cast<U>(b));
}
inline I mul_int(I a, I b) {
  return reinterpret_cast<I>(reinterpret_cast<U>(a) * reinterpret_cast<U>(b));
}
inline I min_int(I a, I b) { return a < b ? a : b; }
inline I max_int(I a, I b) { return a > b ? a : b; }
inline I and_int(I a, I b) { return a & b; }
inline I or_int(I a, I b) { return a | b; }
inline I shift_left(I x, int n) { return reinterpret_cast<I>(reinterpret_cast<U>(x) << n); }
inline I shift_right(I x, int n) { return x >> n; }  // of the signed number
inline F floor(F x) {
  const M is_small = less(magnitude(x), all(8388608.0f));  // larger ones are whole
  const F whole = to_float(__builtin_convertvector(select(is_small, x, all(0.0f)), I));
  const F below = select(less(x, whole), sub(whole, all(1.0f)), whole);
  // The sign matters where the result is 0.
  const F floored = as_float(or_int(as_int(below), and_int(as_int(x), all_int(INT32_MIN))));
  return select(is_small, floored, x);
}
inline F sqrt(F x) {
  return F{__builtin_sqrtf(x[0]), __builtin_sqrtf(x[1]), __builtin_sqrtf(x[2]),
           __builtin_sqrtf(x[3])};
}
// 1 / x for x in [1, 2], within 2 ulp.
inline F inverse(F x) { return all(1.0f) / x; }
// a / b toward 0, wrapped; b is not 0.
inline I quotient(I a, I b) {
  for (int lane = 0; lane < kLanes; ++lane)
    a[lane] = static_cast<int32_t>(static_cast<uint32_t>(int64_t{a[lane]} / b[lane]));
  return a;
}
// The integer part of a * inverse, wrapped.
inline I scaled(I a, double inverse) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const int64_t whole = static_cast<int64_t>(a[lane] * inverse);
    a[lane] = static_cast<int32_t>(static_cast<uint32_t>(whole));
  }
  return a;
}
// 32 bits each, at base[offset].
inline I gather(const int32_t* base, I offset) {
  return I{base[offset[0]], base[offset[1]], base[offset[2]], base[offset[3]]};
}
