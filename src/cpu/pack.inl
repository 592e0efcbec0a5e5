// Between rows of the caller, in any format and place, and the floats that the kernels work on.
using F4 = float __attribute__((vector_size(16)));

inline F4 load4(const float* p) {
  F4 x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}
inline void store4(float* p, F4 x) { __builtin_memcpy(p, &x, sizeof(x)); }

inline void transpose4(F4 (&x)[4]) {
  const F4 a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
  const F4 b = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
  const F4 c = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
  const F4 d = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
  x[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  x[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  x[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  x[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

template <class T>
__attribute__((noinline)) void pack_keys(const PackKArgs& args) {
  // The number of words is not kept: g++ would spill something else.
  RowBuffer buffers[4];
  for (int j = 0; j < args.num_keys; j += kRows) {
    float* packed = args.packed + static_cast<int64_t>(j) * words_of<T>(args.head_dim);
    const void* const* rows = args.k_rows + j;
    const int num_rows = args.num_keys - j < kRows ? args.num_keys - j : kRows;
    int r = 0;
    for (; r + 4 <= num_rows; r += 4) {
      const float* k[4];
      for (int i = 0; i < 4; ++i) k[i] = as_words<T>(rows[r + i], args.head_dim, buffers[i]);
      int c = 0;
      for (; c + 4 <= words_of<T>(args.head_dim); c += 4) {
        F4 x[4];
        for (int i = 0; i < 4; ++i) x[i] = load4(k[i] + c);
        transpose4(x);
        for (int i = 0; i < 4; ++i) store4(packed + (c + i) * kRows + r, x[i]);
      }
      for (; c < words_of<T>(args.head_dim); ++c)
        for (int i = 0; i < 4; ++i) packed[c * kRows + r + i] = k[i][c];
    }
    for (; r < num_rows; ++r) {
      const float* k = as_words<T>(rows[r], args.head_dim, buffers[0]);
      for (int c = 0; c < words_of<T>(args.head_dim); ++c) packed[c * kRows + r] = k[c];
    }
  }
}

template <class T>
__attribute__((noinline)) void pack_values(const PackVArgs& args) {
  const int full = args.head_dim_v / kRows * kRows, rest = args.head_dim_v - full;
  RowBuffer buffer;
  for (int j = 0; j < args.num_keys; j += T::kPerWord) {
    const float* v = value_words<T>(args.v_rows + j, args.num_keys - j, args.head_dim_v, buffer);
    float* packed = args.packed + static_cast<int64_t>(j / T::kPerWord) * kRows;
    for (int c = 0; c < full; c += kRows, packed += args.block_stride)
      __builtin_memcpy(packed, v + c, sizeof(float) * kRows);
    for (int r = 0; r < rest; ++r) packed[r] = v[full + r];
  }
}

// kLanes rows by kLanes columns at a time: whole lines are read and written.
template <class T, int W>
__attribute__((noinline)) void pack_rows(const TransposeArgs& args) {
  constexpr int kWidth = W * kLanes;
  for (int w = 0; w < W; ++w) {
    const void* const* rows = args.from_rows + w * kLanes;
    float* panel = args.panel + w * kLanes;
    for (int c = 0; c < words_of<T>(args.length); c += kLanes) {
      const int left = words_of<T>(args.length) - c, count = left < kLanes ? left : kLanes;
      const int elements = T::kPerWord == 1 ? count : args.length - c * T::kPerWord;
      F x[kLanes];
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) {
        x[r] = all(0.0f);
        if (rows[r] == nullptr) continue;
        const typename T::Raw* from = static_cast<const typename T::Raw*>(rows[r]) + c;
        x[r] = elements >= kLanes * T::kPerWord ? T::decode(from) : decode_part<T>(from, elements);
      }
      transpose(x);
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r)
        if (r < count) store(panel + (c + r) * kWidth, x[r]);
    }
  }
}

template <class T, int W>
__attribute__((noinline)) void unpack_rows(const TransposeArgs& args) {
  constexpr int kWidth = W * kLanes;
  for (int w = 0; w < W; ++w) {
    void* const* rows = args.to_rows + w * kLanes;
    const float* panel = args.panel + w * kLanes;
    const F factor = load(args.factor + w * kLanes);
    // A negative factor marks an empty row: 0 whatever was accumulated.
    const M is_empty = less(factor, all(0.0f));
    for (int c = 0; c < args.length; c += kLanes) {
      const int count = args.length - c < kLanes ? args.length - c : kLanes;
      F x[kLanes];
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) {
        const F value = r < count ? load(panel + (c + r) * kWidth) : all(0.0f);
        x[r] = select(is_empty, all(0.0f), mul(value, factor));
      }
      transpose(x);
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) {
        if (rows[r] == nullptr) continue;
        typename T::Raw* to = static_cast<typename T::Raw*>(rows[r]) + c;
        if (count == kLanes) {
          T::encode(to, x[r]);
        } else {
          encode_part<T>(x[r], count, to);
        }
      }
    }
  }
}

// x * 0 is 0 for every finite x and NaN otherwise, and a NaN stays in a sum.
template <class T>
__attribute__((noinline)) bool has_nonfinite(const void* const* rows, int num_rows, int columns) {
  RowBuffer buffer;
  F sum = all(0.0f);
  float rest = 0;
  for (int j = 0; j < num_rows; ++j) {
    const float* row = as_words<T>(rows[j], columns, buffer);
    int c = 0;
    for (; c + kLanes <= columns; c += kLanes) sum = fma(load(row + c), all(0.0f), sum);
    for (; c < columns; ++c) rest += row[c] * 0.0f;
  }
  float lanes[kLanes];
  store(lanes, sum);
  for (int lane = 0; lane < kLanes; ++lane) rest += lanes[lane];
  return rest != 0.0f;  // 0 or NaN, which differs from everything
}
