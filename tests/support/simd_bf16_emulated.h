// The names of cpu/simd_avx512_bf16.h by integer arithmetic and fma, bit for bit: for tests where
// the instructions are missing. Only a sum within 2^-150 below the smallest normal number differs:
// it is taken for that number, where the instruction makes it 0.

// Subnormal numbers as zeros of their sign.
inline Words without_subnormals(Words x) { return (x & 0x7f800000u) == 0u ? x & 0x80000000u : x; }

inline F flushed(F x) { return bits_as<F>(without_subnormals(bits_as<Words>(x))); }

inline F dot_pairs(F sum, F a, F b) {
  const Words x = bits_as<Words>(a), y = bits_as<Words>(b);
  const F high =
      fma(flushed(bits_as<F>(x & 0xffff0000u)), flushed(bits_as<F>(y & 0xffff0000u)), flushed(sum));
  const F both = fma(flushed(bits_as<F>(x << 16)), flushed(bits_as<F>(y << 16)), flushed(high));
  return flushed(both);
}

inline Words bf16_of(F x) {
  const Words bits = without_subnormals(bits_as<Words>(x));
  const Words rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return (bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded;
}

inline F pairs_of(F low, F high) { return bits_as<F>(bf16_of(low) | bf16_of(high) << 16); }
