// A panel of few queries over many keys, as in decoding: nothing is packed, each row of K and V is
// read once. Scores with vectors along the keys, values with vectors along the columns; every
// element is the same sum in the same order as in qk_block and pv_block, so the bits are theirs.
inline int round_up_to_lanes(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

__attribute__((always_inline)) inline void prefetch_row(const Prefetch& next, int row) {
  if (row >= next.num_rows) return;
  for (int n = 0; n < next.num_bytes; n += 64) prefetch_address(address_ahead(next.rows[row], n));
}

// The columns at `column` of rows to come. Asked for a few at a time between arithmetic: many at
// once would only wait for each other.
template <class T>
__attribute__((always_inline)) inline void prefetch_columns(const Prefetch& next, int first,
                                                            int column) {
  const int at = column * static_cast<int>(sizeof(typename T::Raw));
  if (at % 64 >= kLanes * static_cast<int>(sizeof(typename T::Raw)) || at >= next.num_bytes) return;
  for (int j = first; j < first + kLanes && j < next.num_rows; ++j)
    prefetch_address(address_ahead(next.rows[j], at));
}

// transposed[c][key] = the row of that key, for kLanes keys from `first` on.
template <class T>
inline void transpose_keys(const void* const (&rows)[kLanes], int head_dim, float* transposed,
                           const Prefetch& next, int first) {
  const int words = words_of<T>(head_dim);
  int c = 0;
  for (; (c + kLanes) * T::kPerWord <= head_dim; c += kLanes) {
    prefetch_columns<T>(next, first, c);
    F x[kLanes];
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r)
      x[r] = T::decode(static_cast<const typename T::Raw*>(rows[r]) + c);
    transpose(x);
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) store(transposed + (c + r) * kLanes, x[r]);
  }
  if (c == words) return;
  for (int r = 0; r < kLanes; ++r) {
    const typename T::Raw* from = static_cast<const typename T::Raw*>(rows[r]) + c;
    float rest[kLanes];
    decode_row<T>(from, head_dim - c * T::kPerWord, rest);
    for (int i = 0; i < words - c; ++i) transposed[(c + i) * kLanes + r] = rest[i];
  }
}

// Scores of kLanes keys for `count` lanes from `lane` on.
template <class Step, int count>
inline void narrow_scores(const NarrowQkArgs& args, int lane, F* scores, F* row_max) {
  const int words = (args.head_dim + Step::kPerWord - 1) / Step::kPerWord;
  const float* q = args.q + lane;
  const float* k = args.transposed;
  F acc[count];
#pragma GCC unroll 8
  for (int n = 0; n < count; ++n) acc[n] = all(0.0f);
  for (int begin = 0; begin < words; begin += kChain) {
    const int end = begin + kChain < words ? begin + kChain : words;
    F part[count];
#pragma GCC unroll 8
    for (int n = 0; n < count; ++n) part[n] = all(0.0f);
#pragma GCC unroll 4
    for (int c = begin; c < end; ++c, q += args.width, k += kLanes) {
      const F key = load(k);
#pragma GCC unroll 8
      for (int n = 0; n < count; ++n) part[n] = Step::add_product(part[n], key, all(q[n]));
    }
#pragma GCC unroll 8
    for (int n = 0; n < count; ++n) acc[n] = begin > 0 ? add(acc[n], part[n]) : part[n];
  }
#pragma GCC unroll 8
  for (int n = 0; n < count; ++n) {
    scores[lane + n] = mul(acc[n], all(args.scale));
    row_max[lane + n] = max(scores[lane + n], row_max[lane + n]);
  }
}

template <class Step, class T>
__attribute__((noinline)) void narrow_qk(const NarrowQkArgs& args) {
  F row_max[kNarrowLanes], scores[kNarrowLanes];
  for (int lane = 0; lane < kNarrowLanes; ++lane) scores[lane] = all(0.0f);
  for (int lane = 0; lane < args.num_lanes; ++lane) row_max[lane] = all(args.max_in[lane]);
  for (int j = 0; j < args.num_keys; j += kLanes) {
    const int keys = args.num_keys - j < kLanes ? args.num_keys - j : kLanes;
    const void* rows[kLanes];
    // The last key stands in for those that are not there; its score changes no maximum.
    for (int r = 0; r < kLanes; ++r) rows[r] = args.k_rows[j + (r < keys ? r : keys - 1)];
    transpose_keys<T>(rows, args.head_dim, args.transposed, args.next_k, j);
    int lane = 0;
    for (; lane + 8 <= args.num_lanes; lane += 8)
      narrow_scores<Step, 8>(args, lane, scores, row_max);
    for (; lane + 4 <= args.num_lanes; lane += 4)
      narrow_scores<Step, 4>(args, lane, scores, row_max);
    for (; lane + 2 <= args.num_lanes; lane += 2)
      narrow_scores<Step, 2>(args, lane, scores, row_max);
    for (; lane < args.num_lanes; ++lane) narrow_scores<Step, 1>(args, lane, scores, row_max);
    for (int first = 0; first < args.width; first += kLanes) {
      F x[kLanes];
      for (int r = 0; r < kLanes; ++r) x[r] = scores[first + r];
      transpose(x);
      float* to = args.scores + static_cast<int64_t>(j) * args.width + first;
      for (int r = 0; r < keys; ++r) store(to + r * args.width, x[r]);
    }
  }
  for (int lane = 0; lane < args.width; ++lane) {
    float last = args.max_in[lane];
    if (lane < args.num_lanes) {
      float lanes[kLanes];
      store(lanes, row_max[lane]);
      for (int r = 0; r < kLanes; ++r) last = lanes[r] > last ? lanes[r] : last;
    }
    args.max_out[lane] = last;
  }
}

// acc[lane][column] += p[key][lane] * v[key][column] for the keys of some words, some lanes and
// vectors of columns.
template <class Step, int lanes, int vectors>
inline void narrow_values(const NarrowPvArgs& args, const float* const* v, const float* p,
                          int words, int lane, int column) {
  const int stride = round_up_to_lanes(args.head_dim_v);
  float* at = args.acc + lane * stride + column;
  F acc[lanes][vectors];
#pragma GCC unroll 8
  for (int n = 0; n < lanes; ++n)
#pragma GCC unroll 8
    for (int i = 0; i < vectors; ++i) acc[n][i] = load(at + n * stride + i * kLanes);
  for (int r = 0; r < words; ++r, p += args.width) {
    F value[vectors];
#pragma GCC unroll 8
    for (int i = 0; i < vectors; ++i) value[i] = load(v[r] + column + i * kLanes);
#pragma GCC unroll 8
    for (int n = 0; n < lanes; ++n) {
      const F weight = all(p[lane + n]);
#pragma GCC unroll 8
      for (int i = 0; i < vectors; ++i) acc[n][i] = Step::add_product(acc[n][i], value[i], weight);
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < lanes; ++n)
#pragma GCC unroll 8
    for (int i = 0; i < vectors; ++i) store(at + n * stride + i * kLanes, acc[n][i]);
}

template <class Step, int lanes, int vectors>
inline int narrow_lanes(const NarrowPvArgs& args, const float* const* v, const float* p, int words,
                        int lane) {
  const int columns = round_up_to_lanes(args.head_dim_v);
  for (; lane + lanes <= args.num_lanes; lane += lanes) {
    int column = 0;
    for (; column + vectors * kLanes <= columns; column += vectors * kLanes)
      narrow_values<Step, lanes, vectors>(args, v, p, words, lane, column);
    for (; column < columns; column += kLanes)
      narrow_values<Step, lanes, 1>(args, v, p, words, lane, column);
  }
  return lane;
}

template <class Step, class T>
__attribute__((noinline)) void narrow_pv(const NarrowPvArgs& args) {
  const int columns = round_up_to_lanes(args.head_dim_v);
  for (int n = 0; n < args.num_lanes * columns; ++n) args.acc[n] = 0;
  const bool is_direct = alignof(typename T::Raw) == alignof(float) && columns == args.head_dim_v;
  for (int j = 0; j < args.num_keys; j += kNarrowKeys) {
    const int keys = args.num_keys - j < kNarrowKeys ? args.num_keys - j : kNarrowKeys;
    const float* v[kNarrowKeys];
    int words = 0;
    for (int r = 0; r < keys; r += Step::kPerWord, ++words) {
      const void* const* row = args.v_rows + j + r;
      float* copy = args.values + words * columns;
      v[words] = is_direct ? static_cast<const float*>(*row) : copy;
      for (int n = 0; n < Step::kPerWord; ++n) prefetch_row(args.next_v, j + r + n);
      if constexpr (Step::kPerWord == 2) {
        interleave_rows(row, r + 1 < keys, args.head_dim_v, copy);
      } else if (!is_direct) {
        decode_row<T>(*row, args.head_dim_v, copy);
      }
    }
    const float* p = args.p + static_cast<int64_t>(j / Step::kPerWord) * args.width;
    int lane = narrow_lanes<Step, kRows / 2, 4>(args, v, p, words, 0);
    lane = narrow_lanes<Step, 2, 4>(args, v, p, words, lane);
    narrow_lanes<Step, 1, 8>(args, v, p, words, lane);
  }
  for (int lane = 0; lane < args.num_lanes; ++lane) {
    const float* acc = args.acc + lane * columns;
    for (int c = 0; c < args.head_dim_v; c += kLanes) {
      const int count = args.head_dim_v - c < kLanes ? args.head_dim_v - c : kLanes;
      float* out = args.out + c * args.width + lane;
      float total[kLanes] = {};
      if (!args.is_first)
        for (int i = 0; i < count; ++i) total[i] = out[i * args.width];
      const F sum = load(acc + c);
      store(total, args.is_first ? sum : fma(all(args.alpha[lane]), load(total), sum));
      for (int i = 0; i < count; ++i) out[i * args.width] = total[i];
    }
  }
}
