// A panel of few queries over many keys, as in decoding: nothing is packed, each row of K and V is
// read once. Scores with vectors along the keys, values with vectors along the columns; every
// element is the same sum in the same order as in qk_block, softmax_block and pv_block, so the bits
// are theirs.
inline int round_up_to_lanes(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Asks for whole rows to come, evenly between the work: `rows` of them for each `steps` steps. A
// row's lines one after the other are what memory and its own prefetching like best. Always
// inlined, like LinesAhead.
struct WholeRowsAhead {
  const void* const* row;
  const void* const* end;
  int bytes;  // of a row
  int rows, steps;
  int due = 0;

  __attribute__((always_inline)) WholeRowsAhead(const Prefetch& next, int num_rows, int num_steps)
      : row(next.rows),
        end(next.rows + next.num_rows),
        bytes(next.num_bytes),
        rows(num_rows),
        steps(num_steps > 0 ? num_steps : 1) {}
  __attribute__((always_inline)) void step() {
    for (due += rows; due >= steps && row != end; due -= steps) {
      const uintptr_t at = address_ahead(*row++, 0);
#pragma GCC unroll 4
      for (int n = 0; n < bytes; n += 64) prefetch_address(at + static_cast<uintptr_t>(n));
    }
  }
};

constexpr int kKeyVectors = 4;  // of keys whose scores are made together
constexpr int kKeys = kKeyVectors * kLanes;
// Lanes whose sums fit beside the keys that are turned; with two columns in a word each key is read
// twice, and four lanes are better served from memory.
template <class T>
constexpr int kFewLanes = kRows == 8 && T::kTurned == 1 ? 4 : 2;
constexpr int kTurnedColumns = 64;  // at a time: what all lanes read then is a third of the cache
static_assert(kChain % kTurnedColumns == 0);

// columns[c][first + key] = word c of kLanes rows, as many as are turned at once.
template <class T>
inline void turn_keys(const void* const* rows, int c, float* columns) {
  F x[kLanes];
  T::turn(rows, c, x);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
#pragma GCC unroll 2
    for (int n = 0; n < T::kTurned; ++n)
      store(columns + (i * T::kTurned + n) * kKeys, T::turned(x[i], n));
}

// The same for the words from c to `end`, of rows of head_dim elements.
template <class T>
inline void turn_last_columns(const void* const* rows, int c, int end, int head_dim,
                              float* columns) {
  for (; c < end; c += kLanes, columns += kLanes * kKeys) {
    const int elements = head_dim - c * T::kPerWord, most = kLanes * T::kPerWord;
    F x[kLanes];
    for (int r = 0; r < kLanes; ++r)
      x[r] = decode_part<T>(static_cast<const typename T::Raw*>(rows[r]) + c,
                            elements < most ? elements : most);
    transpose(x);
    for (int i = 0; i < kLanes && c + i < end; ++i) store(columns + i * kKeys, x[i]);
  }
}

// Columns from `begin` on of some keys, `present` vectors of them.
struct TurnedKeys {
  const float* columns;
  int begin, length, present;
  bool starts_chain, ends_chain;
};

// Of the chain that is under way, and of all before it. Of a vector of keys and a lane.
struct Dot {
  F chain, total;
};

// Goes on with dots[lane * kKeyVectors + vector] by the columns that were turned, for `count` lanes
// and `vectors` vectors of keys.
template <class Step, int count, int vectors>
__attribute__((always_inline)) inline void add_products(const TurnedKeys& keys,
                                                        const float* columns, const float* q,
                                                        int width, Dot* dots,
                                                        WholeRowsAhead& ahead) {
  const int length = keys.length;
  F acc[count][vectors];
#pragma GCC unroll 8
  for (int n = 0; n < count; ++n)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      acc[n][v] = keys.starts_chain ? all(0.0f) : dots[n * kKeyVectors + v].chain;
  for (int c = 0; c < length; c += 4) {
    ahead.step();
    const int stop = c + 4 < length ? c + 4 : length;
#pragma GCC unroll 4
    for (int i = c; i < stop; ++i, q += width, columns += kKeys) {
      F key[vectors];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) key[v] = load(columns + v * kLanes);
#pragma GCC unroll 8
      for (int n = 0; n < count; ++n) {
        const F query = all(q[n]);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) acc[n][v] = Step::add_product(acc[n][v], key[v], query);
      }
    }
  }
  const bool is_first_chain = keys.begin < kChain;
#pragma GCC unroll 8
  for (int n = 0; n < count; ++n) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      Dot& dot = dots[n * kKeyVectors + v];
      if (keys.ends_chain) {
        dot.total = is_first_chain ? acc[n][v] : add(dot.total, acc[n][v]);
      } else {
        dot.chain = acc[n][v];
      }
    }
  }
}

template <class Step, int count, int vectors>
inline int add_lanes(const NarrowQkArgs& args, int lane, const TurnedKeys& keys, Dot* dots,
                     WholeRowsAhead& ahead) {
  const float* q = args.q + static_cast<int64_t>(keys.begin) * args.width;
  for (; lane + count <= args.num_lanes; lane += count) {
    for (int v = 0; v < keys.present; v += vectors)
      add_products<Step, count, vectors>(keys, keys.columns + v * kLanes, q + lane, args.width,
                                         dots + lane * kKeyVectors + v, ahead);
  }
  return lane;
}

// The same of lanes 0 to lanes - 1 and two vectors of keys at `rows`, straight from the registers
// that keys are turned in. A sum waits for itself at every column, so two vectors go side by side.
template <class Step, class T, int lanes>
inline void dot_few(const NarrowQkArgs& args, const void* const* rows, WholeRowsAhead& ahead,
                    Dot* dots) {
  constexpr int kStep = kLanes * T::kTurned;
  const int words = words_of<T>(args.head_dim), whole = args.head_dim / T::kPerWord;
  const float* q = args.q;
  for (int begin = 0; begin < words; begin += kChain) {
    const int end = begin + kChain < words ? begin + kChain : words;
    F acc[lanes][2];
    const auto add_column = [&](int v, F key, const float* query) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int n = 0; n < lanes; ++n) acc[n][v] = Step::add_product(acc[n][v], key, all(query[n]));
    };
#pragma GCC unroll 4
    for (int n = 0; n < lanes; ++n) acc[n][0] = acc[n][1] = all(0.0f);
    int c = begin;
    for (; c + kStep <= end && c + kStep <= whole; c += kStep, q += kStep * args.width) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        ahead.step();
        F x[kLanes];
        T::turn(rows + v * kLanes, c, x);
        ahead.step();
        const float* query = q;
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i)
#pragma GCC unroll 2
          for (int n = 0; n < T::kTurned; ++n, query += args.width)
            add_column(v, T::turned(x[i], n), query);
      }
    }
    if (c < end) {
      alignas(64) float columns[kStep * kKeys];
      for (int v = 0; v < 2; ++v)
        turn_last_columns<T>(rows + v * kLanes, c, end, args.head_dim, columns + v * kLanes);
      const float* key = columns;
      for (; c < end; ++c, q += args.width, key += kKeys)
        for (int v = 0; v < 2; ++v) add_column(v, load(key + v * kLanes), q);
    }
#pragma GCC unroll 4
    for (int n = 0; n < lanes; ++n) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        F& total = dots[n * kKeyVectors + v].total;
        total = begin == 0 ? acc[n][v] : add(total, acc[n][v]);
      }
    }
  }
}

// dots[lane][vector].total of keys first to first + kKeys; the last stands in for those that are
// not there.
template <class Step, class T>
inline void dot_products(const NarrowQkArgs& args, int first, WholeRowsAhead& ahead, Dot* dots) {
  constexpr int kStep = kLanes * T::kTurned;
  const int words = words_of<T>(args.head_dim), whole = args.head_dim / T::kPerWord;
  const void* some[kKeys];
  const void* const* rows = args.k_rows + first;
  if (first + kKeys > args.num_keys) {
    for (int r = 0; r < kKeys; ++r)
      some[r] = args.k_rows[first + r < args.num_keys ? first + r : args.num_keys - 1];
    rows = some;
  }
  const bool has_all = first + kKeys / 2 < args.num_keys;
  if (args.num_lanes <= kFewLanes<T>) {
    for (int v = 0; v < (has_all ? kKeyVectors : 2); v += 2) {
      if (args.num_lanes == 1) dot_few<Step, T, 1>(args, rows + v * kLanes, ahead, dots + v);
      if (args.num_lanes == 2) dot_few<Step, T, 2>(args, rows + v * kLanes, ahead, dots + v);
      if constexpr (kFewLanes<T> == 4)
        if (args.num_lanes > 2) dot_few<Step, T, 4>(args, rows + v * kLanes, ahead, dots + v);
    }
    return;
  }
  alignas(64) float columns[kTurnedColumns * kKeys];
  TurnedKeys keys{columns, 0, 0, has_all ? kKeyVectors : kKeyVectors / 2, true, true};
  for (; keys.begin < words; keys.begin += kTurnedColumns) {
    const int end = keys.begin + kTurnedColumns < words ? keys.begin + kTurnedColumns : words;
    keys.length = end - keys.begin;
    keys.starts_chain = keys.begin % kChain == 0;
    keys.ends_chain = end == words || end % kChain == 0;
    for (int c = keys.begin; c < end; c += kStep) {
      for (int v = 0; v < keys.present; ++v) {
        ahead.step();
        float* to = columns + (c - keys.begin) * kKeys + v * kLanes;
        if (c + kStep <= end && c + kStep <= whole) {
          turn_keys<T>(rows + v * kLanes, c, to);
        } else {
          turn_last_columns<T>(rows + v * kLanes, c, end, args.head_dim, to);
        }
      }
    }
    int lane = 0;
    if constexpr (kRows == 8) lane = add_lanes<Step, 8, 2>(args, lane, keys, dots, ahead);
    lane = add_lanes<Step, 4, 2>(args, lane, keys, dots, ahead);
    if (has_all) {
      lane = add_lanes<Step, 2, 4>(args, lane, keys, dots, ahead);
      add_lanes<Step, 1, 4>(args, lane, keys, dots, ahead);
    } else {
      add_lanes<Step, 1, 2>(args, lane, keys, dots, ahead);
    }
  }
}

// Scores of up to kLanes keys from `first` on, for all lanes.
inline void store_scores(const NarrowQkArgs& args, int first, const F* scores) {
  const int keys = args.num_keys - first < kLanes ? args.num_keys - first : kLanes;
  if (args.stride > 0) {
    for (int lane = 0; lane < args.num_lanes; ++lane) {
      float* to = args.scores + lane * args.stride + first;
      store(to, scores[lane]);
      for (int r = keys; r < kLanes; ++r) to[r] = -__builtin_inff();
    }
    return;
  }
  for (int lane = 0; lane < args.width; lane += kLanes) {
    F x[kLanes];
    for (int r = 0; r < kLanes; ++r)
      x[r] = lane + r < args.num_lanes ? scores[lane + r] : all(0.0f);
    transpose(x);
    float* to = args.scores + static_cast<int64_t>(first) * args.width + lane;
    for (int r = 0; r < keys; ++r) store(to + r * args.width, x[r]);
  }
}

// Steps of a WholeRowsAhead within dot_products: two for a block that is turned and multiplied in
// registers; else one for each that is turned, then every four columns of every pass.
template <class T>
inline int steps_per_keys(const NarrowQkArgs& args) {
  const int turns = kKeyVectors * (args.head_dim / T::kPerWord / (kLanes * T::kTurned));
  if (args.num_lanes <= kFewLanes<T>) return 2 * turns;
  const int lanes = args.num_lanes, wide = kRows == 8 ? lanes / 8 : 0, rest = lanes - 8 * wide;
  const int passes = 2 * wide + 2 * (rest / 4) + rest % 4 / 2 + rest % 2;
  const int words = args.head_dim / T::kPerWord;
  return turns + passes * (words / 4);
}

template <class Step, class T>
__attribute__((noinline)) void narrow_qk(const NarrowQkArgs& args) {
  F row_max[kNarrowLanes];
  Dot dots[kNarrowLanes * kKeyVectors];
  for (int lane = 0; lane < args.num_lanes; ++lane) row_max[lane] = all(args.max_in[lane]);
  WholeRowsAhead ahead(args.next, kKeys, steps_per_keys<T>(args));
  for (int j = 0; j < args.num_keys; j += kKeys) {
    dot_products<Step, T>(args, j, ahead, dots);
    for (int v = 0; v < kKeyVectors && j + v * kLanes < args.num_keys; ++v) {
      F scores[kNarrowLanes];
      for (int lane = 0; lane < args.num_lanes; ++lane) {
        scores[lane] = mul(dots[lane * kKeyVectors + v].total, all(args.scale));
        row_max[lane] = max(scores[lane], row_max[lane]);
      }
      store_scores(args, j + v * kLanes, scores);
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

// Weights of `count` lanes from `lane` on, and their sums in four parts by key modulo 4.
template <int count>
inline void narrow_weights(const NarrowSoftmaxArgs& args, int lane, float* total) {
  F base[count];
  F4 sum[count];
  float* at = args.scores + lane * args.stride;
#pragma GCC unroll 4
  for (int n = 0; n < count; ++n) {
    base[n] = finite_base(all(args.max_out[lane + n]));
    sum[n] = F4{};
  }
  for (int j = 0; j < args.num_keys; j += kLanes, at += kLanes) {
#pragma GCC unroll 4
    for (int n = 0; n < count; ++n) {
      float* weights = at + n * args.stride;
      store(weights, exp_of(sub(load(weights), base[n])));
#pragma GCC unroll 4
      for (int r = 0; r < kLanes; r += 4) sum[n] += load4(weights + r);
    }
  }
  for (int n = 0; n < count; ++n)
    total[lane + n] = (sum[n][0] + sum[n][1]) + (sum[n][2] + sum[n][3]);
}

__attribute__((noinline)) void narrow_softmax(const NarrowSoftmaxArgs& args) {
  float total[kMaxVectors * kLanes] = {};
  int lane = 0;
  for (; lane + 2 <= args.num_lanes; lane += 2) narrow_weights<2>(args, lane, total);
  if (lane < args.num_lanes) narrow_weights<1>(args, lane, total);
  for (lane = 0; lane < args.width; lane += kLanes) {
    const F base = finite_base(load(args.max_out + lane));
    const F alpha = exp_of(sub(load(args.max_in + lane), base));
    store(args.alpha + lane, alpha);
    store(args.row_sum + lane, fma(load(args.row_sum + lane), alpha, load(total + lane)));
  }
}

constexpr int kNarrowKeys = 32;                // between two passes over the columns
constexpr int kFourWide = kRows == 8 ? 4 : 2;  // vectors of columns that go with four lanes

// How narrow_pv adds up, and of what.
template <class Step_, class T_>
struct Values {
  using Step = Step_;
  using T = T_;
};

// acc[lane][column] += p[key][lane] * v[key][column] for some keys, lanes and vectors of columns.
template <class V, int lanes, int vectors>
inline void narrow_values(const NarrowPvArgs& args, int first, int keys, int lane, int column,
                          WholeRowsAhead& ahead) {
  const int stride = round_up_to_lanes(args.head_dim_v);
  using Step = typename V::Step;
  const int left = args.head_dim_v - column;
  const int columns = vectors == 1 && left < kLanes ? left : kLanes;
  float* at = args.acc + lane * stride + column;
  F acc[lanes][vectors];
#pragma GCC unroll 8
  for (int n = 0; n < lanes; ++n)
#pragma GCC unroll 8
    for (int i = 0; i < vectors; ++i) acc[n][i] = load(at + n * stride + i * kLanes);
  const float* p = args.p + first / Step::kPerWord * args.key_stride + lane * args.lane_stride;
  for (int j = first; j < first + keys; j += Step::kPerWord, p += args.key_stride) {
    ahead.step();
    F value[vectors];
#pragma GCC unroll 8
    for (int i = 0; i < vectors; ++i)
      value[i] = value_vector<typename V::T>(args.v_rows + j, j + 1 < first + keys,
                                             column + i * kLanes, columns);
#pragma GCC unroll 8
    for (int n = 0; n < lanes; ++n) {
      const F weight = all(p[n * args.lane_stride]);
#pragma GCC unroll 8
      for (int i = 0; i < vectors; ++i) acc[n][i] = Step::add_product(acc[n][i], value[i], weight);
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < lanes; ++n)
#pragma GCC unroll 8
    for (int i = 0; i < vectors; ++i) store(at + n * stride + i * kLanes, acc[n][i]);
}

template <class V, int lanes, int vectors>
inline int narrow_lanes(const NarrowPvArgs& args, int first, int keys, int lane,
                        WholeRowsAhead& ahead) {
  for (; lane + lanes <= args.num_lanes; lane += lanes) {
    int column = 0;
    for (; column + vectors * kLanes <= args.head_dim_v; column += vectors * kLanes)
      narrow_values<V, lanes, vectors>(args, first, keys, lane, column, ahead);
    for (; column < args.head_dim_v; column += kLanes)
      narrow_values<V, lanes, 1>(args, first, keys, lane, column, ahead);
  }
  return lane;
}

// out[c][lane] = alpha[lane] * out[c][lane] + acc[lane][c]. What lanes without a query get is not
// looked at by anyone.
inline void add_to_out(const NarrowPvArgs& args, int lane, const float* acc, int c) {
  const int stride = round_up_to_lanes(args.head_dim_v);
  const int count = args.head_dim_v - c < kLanes ? args.head_dim_v - c : kLanes;
  const F alpha = load(args.alpha + lane);
  F x[kLanes];
  for (int r = 0; r < kLanes; ++r)
    x[r] = lane + r < args.num_lanes ? load(acc + (lane + r) * stride + c) : all(0.0f);
  transpose(x);
  float* out = args.out + static_cast<int64_t>(c) * args.width + lane;
  for (int i = 0; i < count; ++i, out += args.width)
    store(out, args.is_first ? x[i] : fma(alpha, load(out), x[i]));
}

// Passes over the columns and lanes that narrow_lanes makes.
template <int lanes, int vectors>
inline int count_passes(const NarrowPvArgs& args, int& rest) {
  const int columns = args.head_dim_v / (vectors * kLanes);
  const int left = round_up_to_lanes(args.head_dim_v - columns * vectors * kLanes) / kLanes;
  const int passes = rest / lanes * (columns + left);
  rest %= lanes;
  return passes;
}
inline int passes_per_key(const NarrowPvArgs& args) {
  int rest = args.num_lanes, passes = 0;
  if constexpr (kRows == 8) passes += count_passes<8, 2>(args, rest);
  passes += count_passes<4, kFourWide>(args, rest);
  passes += count_passes<2, 4>(args, rest);
  return passes + count_passes<1, 8>(args, rest);
}

template <class Step, class T>
__attribute__((noinline)) void narrow_pv(const NarrowPvArgs& args) {
  const int columns = round_up_to_lanes(args.head_dim_v);
  for (int n = 0; n < args.num_lanes * columns; n += kLanes) store(args.acc + n, all(0.0f));
  using V = Values<Step, T>;
  WholeRowsAhead ahead(args.next, Step::kPerWord, passes_per_key(args));
  for (int j = 0; j < args.num_keys; j += kNarrowKeys) {
    const int keys = args.num_keys - j < kNarrowKeys ? args.num_keys - j : kNarrowKeys;
    int lane = 0;
    if constexpr (kRows == 8) lane = narrow_lanes<V, 8, 2>(args, j, keys, lane, ahead);
    lane = narrow_lanes<V, 4, kFourWide>(args, j, keys, lane, ahead);
    lane = narrow_lanes<V, 2, 4>(args, j, keys, lane, ahead);
    narrow_lanes<V, 1, 8>(args, j, keys, lane, ahead);
  }
  for (int lane = 0; lane < args.num_lanes; lane += kLanes)
    for (int c = 0; c < args.head_dim_v; c += kLanes) add_to_out(args, lane, args.acc, c);
}
