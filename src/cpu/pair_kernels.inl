// Tensors with an element for every pair, stored along the keys, turned into lanes: kLanes queries
// by kLanes keys at a time.

// What to read of a row, and what to do with a panel.
template <class T>
struct Added {
  using Raw = typename T::Raw;
  static constexpr uint8_t kFiller = 0;
  static F decode(const Raw* p) { return T::decode(p); }
  static void put(float* at, F x) { store(at, x); }
};
struct Hidden {
  using Raw = uint8_t;
  static constexpr uint8_t kFiller = 1;
  static F decode(const Raw* p) {
    return select(equal_int(load_u8(p), all_int(0)), all(-__builtin_inff()), all(0.0f));
  }
  static void put(float* at, F x) { store(at, select(equal(x, all(0.0f)), load(at), x)); }
};

template <class Use, int W>
__attribute__((noinline)) void turn_pairs(const PairArgs& args) {
  using Raw = typename Use::Raw;
  for (int lane = 0; lane < W * kLanes; lane += kLanes) {
    for (int j = 0; j < args.num_keys; j += kLanes) {
      const int count = args.num_keys - j < kLanes ? args.num_keys - j : kLanes;
      F x[kLanes];
      for (int r = 0; r < kLanes; ++r) {
        const Raw* row = static_cast<const Raw*>(args.rows[lane + r]);
        if (row != nullptr && count == kLanes) {
          x[r] = Use::decode(row + j);
          continue;
        }
        Raw rest[kLanes];
        for (int c = 0; c < kLanes; ++c) rest[c] = Use::kFiller;
        if (row != nullptr)
          __builtin_memcpy(rest, row + j, sizeof(Raw) * static_cast<size_t>(count));
        x[r] = Use::decode(rest);
      }
      transpose(x);
      float* at = args.panel + static_cast<int64_t>(j) * (W * kLanes) + lane;
      for (int c = 0; c < count; ++c) Use::put(at + c * (W * kLanes), x[c]);
    }
  }
}

// Ends with the first row that settles it.
__attribute__((noinline)) unsigned mask_content(const void* const* rows, int num_rows,
                                                int num_keys) {
  constexpr int kBytes = 4 * kLanes;
  using Bytes = uint8_t __attribute__((vector_size(kBytes)));
  unsigned content = 0;
  for (int r = 0; r < num_rows && content != (kShowsSome | kHidesSome); ++r) {
    if (r > 0 && rows[r] == rows[r - 1]) continue;
    const uint8_t* row = static_cast<const uint8_t*>(rows[r]);
    Bytes shown{}, hidden{};
    int j = 0;
    for (; j + kBytes <= num_keys; j += kBytes) {
      Bytes x;
      __builtin_memcpy(&x, row + j, sizeof(x));
      shown |= x;
      hidden |= bits_as<Bytes>(x == 0);
    }
    for (; j < num_keys; ++j) content |= row[j] != 0 ? kShowsSome : kHidesSome;
    uint64_t words[2][kBytes / 8];
    __builtin_memcpy(words[0], &shown, sizeof(shown));
    __builtin_memcpy(words[1], &hidden, sizeof(hidden));
    for (int n = 0; n < kBytes / 8; ++n) {
      if (words[0][n] != 0) content |= kShowsSome;
      if (words[1][n] != 0) content |= kHidesSome;
    }
  }
  return content;
}
