// Dropout's random bits: Philox4x32-10 [Salmon11], a counter-based generator, so that a keep
// decision depends on (seed, offset, b, h, i, j) alone: not on tiles, threads, layout or direction
// of the pass.
//   key of a call  = words 0, 1 of philox(counter {offset low, offset high, kDropoutDomain, 0},
//                                         key {seed low, seed high})
//   bits of a pair = word j % 4 of philox(counter {j / 4, i, h, b}, key of the call)
//   kept           = bits >= dropout_threshold(p)
// b, h, i, j are positions in the whole problem (i, j within their sequence), each below 2^32.
#pragma once

namespace sirdar {

struct PhiloxKey {
  unsigned x = 0, y = 0;
};
struct PhiloxBlock {
  unsigned word[4] = {0, 0, 0, 0};
};

constexpr PhiloxBlock philox4x32_10(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const unsigned long long a = 0xD2511F53ull * counter.word[0];
    const unsigned long long b = 0xCD9E8D57ull * counter.word[2];
    counter = {{static_cast<unsigned>(b >> 32) ^ counter.word[1] ^ key.x, static_cast<unsigned>(b),
                static_cast<unsigned>(a >> 32) ^ counter.word[3] ^ key.y,
                static_cast<unsigned>(a)}};
    key = {key.x + 0x9E3779B9u, key.y + 0xBB67AE85u};
  }
  return counter;
}

inline constexpr unsigned kDropoutDomain = 0x44524F50u;

constexpr PhiloxKey dropout_key(unsigned long long seed, unsigned long long offset) {
  const PhiloxBlock counter = {
      {static_cast<unsigned>(offset), static_cast<unsigned>(offset >> 32), kDropoutDomain, 0}};
  const PhiloxBlock block =
      philox4x32_10(counter, {static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32)});
  return {block.word[0], block.word[1]};
}

// Pairs whose 32 bits lie below are dropped: p * 2^32 rounded up, so p > 0 always drops something.
constexpr unsigned long long dropout_threshold(double dropout_p) {
  const double scaled = dropout_p * 4294967296.0;
  const unsigned long long whole = static_cast<unsigned long long>(scaled);
  return static_cast<double>(whole) < scaled ? whole + 1 : whole;
}

struct Dropout {
  PhiloxKey key;
  unsigned long long threshold = 0;
  double keep_scale = 1;  // 1 / (1 - p)

  // 0 <= dropout_p < 1.
  static constexpr Dropout of(double dropout_p, unsigned long long seed,
                              unsigned long long offset) {
    return {dropout_key(seed, offset), dropout_threshold(dropout_p), 1 / (1 - dropout_p)};
  }
  constexpr bool keeps(long long b, long long h, long long i, long long j) const {
    const PhiloxBlock counter = {{static_cast<unsigned>(j >> 2), static_cast<unsigned>(i),
                                  static_cast<unsigned>(h), static_cast<unsigned>(b)}};
    return philox4x32_10(counter, key).word[j & 3] >= threshold;
  }
};

}  // namespace sirdar
