// Dropout: shared/philox.h for a vector of queries at a time. One counter gives the bits of four
// keys in a row.
inline void philox(I (&word)[4], const uint32_t (&key)[2]) {
  uint32_t x = key[0], y = key[1];
  for (int round = 0; round < 10; ++round) {
    I a_high, a_low, b_high, b_low;
    mul_wide(word[0], 0xD2511F53u, a_high, a_low);
    mul_wide(word[2], 0xCD9E8D57u, b_high, b_low);
    word[0] = xor_int(xor_int(b_high, word[1]), all_int(static_cast<int32_t>(x)));
    word[1] = b_low;
    word[2] = xor_int(xor_int(a_high, word[3]), all_int(static_cast<int32_t>(y)));
    word[3] = a_low;
    x += 0x9E3779B9u;
    y += 0xBB67AE85u;
  }
}

template <int W>
__attribute__((noinline)) void drop_block(const DropArgs& args) {
  // Integers compare as signed: shifted by half their range, unsigned ones keep their order.
  const I half = all_int(static_cast<int32_t>(0x80000000u));
  const I threshold = xor_int(all_int(static_cast<int32_t>(args.threshold)), half);
  for (int j = 0; j < args.num_keys; j += 4) {
    const int keys = args.num_keys - j < 4 ? args.num_keys - j : 4;
    for (int w = 0; w < W; ++w) {
      const int lane = w * kLanes;
      I word[4] = {all_int(static_cast<int32_t>((args.first_key + static_cast<uint32_t>(j)) / 4)),
                   load_int(args.i + lane), load_int(args.h + lane),
                   all_int(static_cast<int32_t>(args.b))};
      philox(word, args.key);
      float* at = args.p + static_cast<int64_t>(j) * (W * kLanes) + lane;
      for (int u = 0; u < keys; ++u, at += W * kLanes) {
        const M is_dropped = less_int(xor_int(word[u], half), threshold);
        store(at, select(is_dropped, all(0.0f), load(at)));
      }
    }
  }
}
