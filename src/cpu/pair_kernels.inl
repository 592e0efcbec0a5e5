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

// A part of a row, where it may end or there is none.
template <class Use>
__attribute__((noinline)) void decode_part(const typename Use::Raw* from, int count, float* to) {
  typename Use::Raw rest[kLanes];
  for (int c = 0; c < kLanes; ++c) rest[c] = Use::kFiller;
  if (from != nullptr) __builtin_memcpy(rest, from, sizeof(rest[0]) * static_cast<size_t>(count));
  store(to, Use::decode(rest));
}

template <class Use, int W>
__attribute__((noinline)) void turn_pairs(const PairArgs& args) {
  using Raw = typename Use::Raw;
  constexpr int kAhead = 256 / static_cast<int>(sizeof(Raw));
  for (int lane = 0; lane < W * kLanes; lane += kLanes) {
    const Raw* rows[kLanes];
    bool is_whole = true;
    for (int r = 0; r < kLanes; ++r) {
      rows[r] = static_cast<const Raw*>(args.rows[lane + r]);
      is_whole = is_whole && rows[r] != nullptr;
    }
    float* at = args.panel + lane;
    int j = 0;
    for (; is_whole && j + kLanes <= args.num_keys; j += kLanes, at += kLanes * W * kLanes) {
      F x[kLanes];
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) {
        x[r] = Use::decode(rows[r] + j);
        __builtin_prefetch(rows[r] + j + kAhead);
      }
      transpose(x);
#pragma GCC unroll 16
      for (int c = 0; c < kLanes; ++c) Use::put(at + c * (W * kLanes), x[c]);
    }
    for (; j < args.num_keys; j += kLanes, at += kLanes * W * kLanes) {
      const int count = args.num_keys - j < kLanes ? args.num_keys - j : kLanes;
      float part[kLanes][kLanes];
      F x[kLanes];
      for (int r = 0; r < kLanes; ++r) {
        decode_part<Use>(rows[r] != nullptr ? rows[r] + j : nullptr, count, part[r]);
        x[r] = load(part[r]);
      }
      transpose(x);
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
