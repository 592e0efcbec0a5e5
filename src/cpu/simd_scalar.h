// The vector layer for machines without a kernel of their own: four lanes that any compiler maps to
// what the baseline has (SSE2, NEON) or to plain scalars. Multiply-add is two roundings here.
// Each simd_*.h defines the same names, inside the namespace of its isa_*.cc.
using F = float __attribute__((vector_size(16)));    // floats
using I = int32_t __attribute__((vector_size(16)));  // integers
using M = int32_t __attribute__((vector_size(16)));  // a truth per lane

constexpr int kLanes = 4;
constexpr int kRows =
    4;  // rows of a register block: kRows * 2 accumulators, 2 vectors, 1 broadcast

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
inline F fma(F a, F b, F c) { return a * b + c; }
inline F select(M m, F a, F b) { return m ? a : b; }
// b where either is a NaN: the order of the operands decides whether a NaN passes.
inline F max(F a, F b) { return select(a > b, a, b); }
inline M less(F a, F b) { return a < b; }
inline M equal(F a, F b) { return a == b; }
inline M less_int(I a, I b) { return a < b; }
inline M equal_int(I a, I b) { return a == b; }
inline M both(M a, M b) { return a & b; }
inline M always() { return M{-1, -1, -1, -1}; }
inline I sub_int(I a, I b) { return a - b; }
inline F to_float(I x) { return __builtin_convertvector(x, F); }
inline F magnitude(F x) {
  I bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  bits &= 0x7fffffff;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}
// The low nine bits of x as sign and exponent of a float.
inline F exponent_from_low_bits(F x) {
  uint32_t __attribute__((vector_size(16))) bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  bits <<= 23;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}
// x * log2(e) - n for the integer n next to it, without the rounding error of the product: n *
// kHigh is exact, and so is the first difference.
inline F log2_fraction(F x, F n) {
  constexpr float kHigh = 0.693359375f, kLow = -2.12194440e-4f, kLog2e = 1.44269504f;
  return mul(sub(sub(x, mul(n, all(kHigh))), mul(n, all(kLow))), all(kLog2e));
}
