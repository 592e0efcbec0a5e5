// Soft-cap by polynomial: softcap * tanh(x), x = score * scale / softcap, where |x| is small.
#pragma once

namespace sirdar::sm90 {

// An odd polynomial for tanh(x), |x| <= limit: x (c0 + c1 x^2 + c2 x^4).
struct CapPolynomial {
  float limit, c0, c1, c2;
};
// Relative errors 6e-6, 6e-6 and 1e-7: the logarithm of a sum is wanted to 24 bits, weights are
// rounded to 8 or 11.
inline constexpr CapPolynomial kCapFar{0.4f, 0x1.ffff2ep-1f, -0x1.549bdcp-2f, 0x1.f0c110p-4f},
    kCapNear{0.14f, 0x1.ffff2cp-1f, -0x1.52ad1ap-2f, 0.0f},
    kCapExact{0.2f, 0x1.fffffcp-1f, -0x1.5548e6p-2f, 0x1.0a8e38p-3f};

// kCapFar or kCapExact for scores s of a magnitude up to `largest`: s (c0 + c1 s^2 + c2 s^4) is the
// capped logit. Those of others are softcap * tanh(factor * s).
struct CapFactors {
  float factor, largest, c0, c1, c2;
};

// kCapNear or kCapExact for scores s as the products leave them, in t = s^2 + center:
// s (c0 + c1 t + c2 t^2) is the capped logit in log2 units. Scores below the limit are those whose
// t has `exponent`, biased, in its bits.
struct CapTerms {
  float center, c0, c1, c2;
  unsigned exponent;
};

}  // namespace sirdar::sm90
