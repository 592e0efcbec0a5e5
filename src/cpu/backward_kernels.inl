// The micro-kernels of the backward pass, written once over the vector layer; included after
// kernels.inl and under the same rules.

constexpr int kWidth = kMaxVectors * kLanes;

// acc[r][w] += A(first + r, .) B for a block of rows; the reduction runs along columns begin to end
// of A, where begin is a multiple of the width or end lies in the same panel.
template <int rows, int W>
inline void row_products(const ProductArgs& args, int first, int begin, int end,
                         F (&acc)[rows][W]) {
  const float* b = args.b + static_cast<int64_t>(begin) * kWidth;
  while (begin < end) {
    const float* a = args.a + begin / kWidth * args.a_stride +
                     static_cast<int64_t>(first) * kWidth + begin % kWidth;
    const int room = kWidth - begin % kWidth;
    const int count = end - begin < room ? end - begin : room;
    begin += count;
#pragma GCC unroll 2
    for (int c = 0; c < count; ++c, b += kWidth) {
      F row[W];
      for (int w = 0; w < W; ++w) row[w] = load(b + w * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const F x = all(a[r * kWidth + c]);
        for (int w = 0; w < W; ++w) acc[r][w] = fma(x, row[w], acc[r][w]);
      }
    }
  }
}

// The same with A transposed: rows are lanes of its one panel, the reduction runs along its rows.
template <int rows, int W>
inline void column_products(const ProductArgs& args, int first, F (&acc)[rows][W]) {
  const float* a = args.a + first;
  const float* b = args.b;
#pragma GCC unroll 2
  for (int c = 0; c < args.depth; ++c, a += kWidth, b += kWidth) {
    F row[W];
    for (int w = 0; w < W; ++w) row[w] = load(b + w * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const F x = all(a[r]);
      for (int w = 0; w < W; ++w) acc[r][w] = fma(x, row[w], acc[r][w]);
    }
  }
}

template <int rows, int W>
inline void add_block(const float* c, F (&acc)[rows][W]) {
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
    for (int w = 0; w < W; ++w) acc[r][w] = add(load(c + r * kWidth + w * kLanes), acc[r][w]);
}

template <int rows, int W>
inline void store_block(float* c, const F (&acc)[rows][W]) {
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
    for (int w = 0; w < W; ++w) store(c + r * kWidth + w * kLanes, acc[r][w]);
}

template <int rows, int W>
inline void clear_block(F (&acc)[rows][W]) {
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
    for (int w = 0; w < W; ++w) acc[r][w] = all(0.0f);
}

// What a kernel does with one block of `rows` rows from `first`. Scores have the chains of the
// forward (kChain), and so its bits.
struct ScoreRows {
  template <int rows>
  static void run(const ProductArgs& args, int first) {
    float* c = args.c + static_cast<int64_t>(first) * kWidth;
    const F scale = all(args.scale);
    for (int begin = 0; begin < args.depth; begin += kChain) {
      const int end = begin + kChain < args.depth ? begin + kChain : args.depth;
      F acc[rows][kMaxVectors];
      clear_block(acc);
      row_products(args, first, begin, end, acc);
      if (begin > 0) add_block(c, acc);
      if (end == args.depth) {
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r)
          for (int w = 0; w < kMaxVectors; ++w) acc[r][w] = mul(acc[r][w], scale);
      }
      store_block(c, acc);
    }
  }
};

// The terms of a block are summed by themselves and then added: no chain starts from the total.
template <int W>
struct AccumulateRows {
  template <int rows>
  static void run(const ProductArgs& args, int first) {
    float* c = args.c + static_cast<int64_t>(first) * kWidth;
    F acc[rows][W];
    clear_block(acc);
    row_products(args, first, 0, args.depth, acc);
    add_block(c, acc);
    store_block(c, acc);
  }
};

template <int W>
struct AccumulateColumns {
  template <int rows>
  static void run(const ProductArgs& args, int first) {
    float* c = args.c + static_cast<int64_t>(first) * kWidth;
    F acc[rows][W];
    clear_block(acc);
    column_products(args, first, acc);
    add_block(c, acc);
    store_block(c, acc);
  }
};

// -0: a masked pair's weight, and the slope by what a value does not depend on.
inline M is_minus_zero(const float* p) {
  return equal_int(load_int(reinterpret_cast<const int32_t*>(p)), all_int(-0x7fffffff - 1));
}

struct GradientRows {
  template <int rows>
  static void run(const GradientArgs& args, int first) {
    F acc[rows][kMaxVectors];
    clear_block(acc);
    row_products(args.product, first, 0, args.product.depth, acc);
    const int64_t at = static_cast<int64_t>(first) * kWidth;
    float* p = args.p + at;
    if (args.keep != nullptr) {
      const float* keep = args.keep + at;
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r)
        for (int w = 0; w < kMaxVectors; ++w)
          acc[r][w] = mul(acc[r][w], load(keep + r * kWidth + w * kLanes));
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      for (int w = 0; w < kMaxVectors; ++w) {
        const F delta = load(args.delta + w * kLanes);
        acc[r][w] = mul(load(p + r * kWidth + w * kLanes), sub(acc[r][w], delta));
      }
    }
    if (args.has_masks) {
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r)
        for (int w = 0; w < kMaxVectors; ++w)
          acc[r][w] = select(is_minus_zero(p + r * kWidth + w * kLanes), all(0.0f), acc[r][w]);
    }
    if (args.dvalue != nullptr) store_block(args.dvalue + at, acc);
    if (args.mod_slope != nullptr) multiply_slopes(args.mod_slope + at, acc);
    if (args.dlogit != nullptr) store_block(args.dlogit + at, acc);
    if (args.slope != nullptr) multiply_slopes(args.slope + at, acc);
    const F scale = all(args.product.scale);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
      for (int w = 0; w < kMaxVectors; ++w) acc[r][w] = mul(acc[r][w], scale);
    store_block(args.product.c + at, acc);
    if (args.keep != nullptr) drop_rows<rows>(p, args.keep + at);
  }
  // Where nothing is handed down, as at a masked pair, the slope may be anything, NaN too; and so
  // may what is handed down where nothing depends on it.
  template <int rows>
  __attribute__((always_inline)) static void multiply_slopes(const float* slopes,
                                                             F (&acc)[rows][kMaxVectors]) {
    const F zero = all(0.0f);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      for (int w = 0; w < kMaxVectors; ++w) {
        const float* slope = slopes + r * kWidth + w * kLanes;
        const M is_zero = either(equal(acc[r][w], zero), is_minus_zero(slope));
        acc[r][w] = select(is_zero, zero, mul(acc[r][w], load(slope)));
      }
    }
  }
  // The weights that v has met. -0 stays what it is.
  template <int rows>
  static void drop_rows(float* p, const float* keep) {
    for (int n = 0; n < rows * kWidth; n += kLanes) store(p + n, mul(load(p + n), load(keep + n)));
  }
};

template <class Block, int rows, class Args>
inline void last_rows(const Args& args, int first, int count) {
  if constexpr (rows > 0) {
    if (count == rows) {
      Block::template run<rows>(args, first);
    } else {
      last_rows<Block, rows - 1>(args, first, count);
    }
  }
}

template <class Block, class Args>
inline void all_rows(const Args& args, int num_rows) {
  int r = 0;
  for (; r + kRows <= num_rows; r += kRows) Block::template run<kRows>(args, r);
  last_rows<Block, kRows - 1>(args, r, num_rows - r);
}

__attribute__((noinline)) void score_product(const ProductArgs& args) {
  all_rows<ScoreRows>(args, args.num_rows);
}

template <int W>
__attribute__((noinline)) void accumulate_product(const ProductArgs& args) {
  all_rows<AccumulateRows<W>>(args, args.num_rows);
}

template <int W>
__attribute__((noinline)) void accumulate_transposed(const ProductArgs& args) {
  all_rows<AccumulateColumns<W>>(args, args.num_rows);
}

__attribute__((noinline)) void gradient_block(const GradientArgs& args) {
  all_rows<GradientRows>(args, args.product.num_rows);
}

// Which lanes see key j.
inline M visible_lanes(const WeightArgs& args, int j, int lane) {
  const int key = args.first_key + j;
  M visible = both(less_int(load_int(args.lo + lane), all_int(key + 1)),
                   less_int(all_int(key), load_int(args.hi + lane)));
  if (args.visible != nullptr)
    visible = both(visible, holds(load_int(args.visible + j * args.visible_stride + lane)));
  if (args.document_q != nullptr) {
    visible =
        both(visible, equal_int(load_int(args.document_q + lane), all_int(args.document_k[j])));
  }
  return visible;
}

template <bool has_masks, bool has_factor>
inline void weights_of(const WeightArgs& args) {
  const F lowest = all(-__builtin_inff()), masked = all(-0.0f), highest = all(88.0f);
  F base[kMaxVectors], weight[kMaxVectors];
  for (int w = 0; w < kMaxVectors; ++w) {
    base[w] = load(args.base + w * kLanes);
    weight[w] = has_factor ? load(args.weight + w * kLanes) : base[w];
  }
  float* at = args.scores;
  for (int j = 0; j < args.num_keys; ++j, at += kWidth) {
    for (int w = 0; w < kMaxVectors; ++w) {
      // An lse below the scores it was made of is not one; its weights end at exp(88).
      F p = exp_of(min(highest, sub(load(at + w * kLanes), base[w])));
      if constexpr (has_factor) p = mul(p, weight[w]);
      if constexpr (has_masks) {
        p = select(visible_lanes(args, j, w * kLanes), p, masked);
        if (args.bias != nullptr) {
          const F bias = load(args.bias + static_cast<int64_t>(j) * kWidth + w * kLanes);
          p = select(equal(bias, lowest), masked, p);
        }
      }
      store(at + w * kLanes, p);
    }
  }
}

template <bool has_masks, bool has_factor>
__attribute__((noinline)) void weight_block(const WeightArgs& args) {
  weights_of<has_masks, has_factor>(args);
}

__attribute__((noinline)) void weight_blocks(const WeightArgs& args) {
  if (args.has_masks) {
    args.weight != nullptr ? weight_block<true, true>(args) : weight_block<true, false>(args);
  } else {
    args.weight != nullptr ? weight_block<false, true>(args) : weight_block<false, false>(args);
  }
}

// Odd polynomial, relative minimax on |x| <= 0.625 (4e-9).
inline F tanh_near(F x) {
  const F z = mul(x, x);
  F p = fma(all(-5.717040725e-3f), z, all(2.065058367e-2f));
  p = fma(p, z, all(-5.374349706e-2f));
  p = fma(p, z, all(1.333149128e-1f));
  p = fma(p, z, all(-3.333328392e-1f));
  return fma(mul(p, z), x, x);
}

// tanh rounded less often than in tanh_of(): the gradient feels each of its errors softcap times.
// The slope 1 - tanh^2 = 4 e / (1 + e)^2, e = exp(-2 |x|), needs no difference of numbers near 1.
__attribute__((noinline)) void softcap_block(const SoftcapArgs& args) {
  const double inverse = 1.0 / static_cast<double>(args.softcap);
  const F high = all(static_cast<float>(inverse)), one = all(1.0f);
  const F low = all(static_cast<float>(inverse - static_cast<double>(static_cast<float>(inverse))));
  const F cap = all(args.softcap);
  const int64_t count = static_cast<int64_t>(args.num_keys) * kWidth;
  for (int64_t n = 0; n < count; n += kLanes) {
    const F score = load(args.scores + n);
    const F x = fma(score, high, mul(score, low));
    const F size = magnitude(x);
    const F e = exp_of(mul(size, all(-2.0f)));
    const F half = div(all(2.0f), add(one, e));
    const F rest = mul(e, half);
    const F far = sub(one, rest);
    const F signed_far = select(less(x, all(0.0f)), sub(all(0.0f), far), far);
    const F t = select(less(size, all(0.625f)), tanh_near(x), signed_far);
    store(args.scores + n, mul(cap, t));
    store(args.slope + n, mul(rest, half));
  }
}

// x * 0 is 0 for every finite x and NaN otherwise, and a NaN stays in a sum.
template <class T>
__attribute__((noinline)) bool load_panels(const RowsArgs& args) {
  const F zero = all(0.0f);
  F sum = zero;
  RowBuffer buffer;
  const typename T::Raw* rows = static_cast<const typename T::Raw*>(args.rows);
  for (int r = 0; r < args.num_rows; ++r) {
    const float* from = as_words<T>(rows + r * args.row_stride, args.columns, buffer);
    float* to = args.panels + static_cast<int64_t>(r) * kWidth;
    int c = 0;
    for (; c + kWidth <= args.columns; c += kWidth, to += args.panel_stride) {
      for (int w = 0; w < kMaxVectors; ++w) {
        const F x = load(from + c + w * kLanes);
        sum = fma(x, zero, sum);
        store(to + w * kLanes, x);
      }
    }
    if (c == args.columns) continue;
    for (int n = 0; n < kWidth; ++n) to[n] = c + n < args.columns ? from[c + n] : 0.0f;
    for (int w = 0; w < kMaxVectors; ++w) sum = fma(load(to + w * kLanes), zero, sum);
  }
  float lanes[kLanes];
  store(lanes, sum);
  float rest = 0;
  for (int lane = 0; lane < kLanes; ++lane) rest += lanes[lane];
  return rest == 0.0f;
}

template <class T>
__attribute__((noinline)) void store_panels(const StoreRowsArgs& args) {
  constexpr bool is_direct = sizeof(typename T::Raw) == sizeof(float);
  RowBuffer buffer;
  typename T::Raw* rows = static_cast<typename T::Raw*>(args.rows);
  for (int r = 0; r < args.num_rows; ++r, rows += args.row_stride) {
    const float* from = args.panels + static_cast<int64_t>(r) * kWidth;
    float* to = is_direct ? reinterpret_cast<float*>(rows) : buffer.at;
    int c = 0;
    for (; c + kWidth <= args.columns; c += kWidth, from += args.panel_stride)
      for (int w = 0; w < kMaxVectors; ++w) store(to + c + w * kLanes, load(from + w * kLanes));
    for (int n = 0; c < args.columns; ++c, ++n) to[c] = from[n];
    if constexpr (!is_direct) encode_row<T>(buffer.at, args.columns, rows);
  }
}

// In the chains of the products dP that delta is taken from: where a single key has all the weight
// both are the same number.
__attribute__((noinline)) void dot_lanes(const DotArgs& args) {
  F sum[kMaxVectors];
  for (int w = 0; w < kMaxVectors; ++w) sum[w] = all(0.0f);
  for (int c = 0; c < args.depth; ++c) {
    const int64_t at = static_cast<int64_t>(c) * kWidth;
    for (int w = 0; w < kMaxVectors; ++w)
      sum[w] = fma(load(args.a + at + w * kLanes), load(args.b + at + w * kLanes), sum[w]);
  }
  for (int w = 0; w < kMaxVectors; ++w) store(args.sums + w * kLanes, sum[w]);
}

__attribute__((noinline)) void add_terms(float* sums, const float* terms, int64_t count) {
  for (int64_t n = 0; n < count; n += kLanes) store(sums + n, add(load(sums + n), load(terms + n)));
}

constexpr int kTermRow = 3 * kWidth;

__attribute__((noinline)) void pair_terms(const TermArgs& args) {
  const F zero = all(0.0f);
  for (int j = 0; j < args.num_keys; ++j) {
    float* row = args.terms + static_cast<int64_t>(j) * kTermRow;
    for (int w = 0; w < kMaxVectors; ++w) {
      const int lane = w * kLanes;
      const F dvalue = load(args.dvalue + static_cast<int64_t>(j) * kWidth + lane);
      const float* slope = args.slope + j * args.slope_stride + lane;
      const M is_zero = either(equal(dvalue, zero), is_minus_zero(slope));
      store(row + lane, zero);
      store(row + kWidth + lane, select(is_zero, zero, mul(dvalue, load(slope))));
      store(row + 2 * kWidth + lane, zero);
    }
  }
}

__attribute__((noinline)) void sum_per_lane(const TermSumArgs& args) {
  for (int w = 0; w < kMaxVectors; ++w) {
    const float* at = args.terms + kWidth + w * kLanes;
    F sum = load(args.sums + w * kLanes);
    for (int j = 0; j < args.num_keys; ++j, at += kTermRow) sum = add(sum, load(at));
    store(args.sums + w * kLanes, sum);
  }
}

__attribute__((noinline)) void sum_per_key(const TermSumArgs& args) {
  for (int j = 0; j < args.num_keys; ++j) {
    const float* row = args.terms + static_cast<int64_t>(j) * kTermRow + kWidth;
    F sum = load(row);
    for (int w = 1; w < kMaxVectors; ++w) sum = add(sum, load(row + w * kLanes));
    float lanes[kLanes];
    store(lanes, sum);
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    args.sums[j] += lanes[0];
  }
}

// Along the diagonals: a distance's lane moves by one from key to key.
__attribute__((noinline)) void sum_per_distance(const TermSumArgs& args) {
  const int last = args.num_keys - 1;
  for (int n = 0; n < last + kWidth; n += kLanes) {
    // Keys for which some of the distances n .. n + kLanes - 1 have a lane.
    const int begin = last - n - (kLanes - 1) > 0 ? last - n - (kLanes - 1) : 0;
    const int end = last - n + kWidth < args.num_keys ? last - n + kWidth : args.num_keys;
    F sum = load(args.sums + n);
    for (int j = begin; j < end; ++j)
      sum = add(sum, load(args.terms + static_cast<int64_t>(j) * kTermRow + kWidth + n + j - last));
    store(args.sums + n, sum);
  }
}

constexpr BackwardKernels make_backward_table() {
  return {.scores = score_product,
          .accumulate = {accumulate_product<1>, accumulate_product<2>},
          .accumulate_transposed = {accumulate_transposed<1>, accumulate_transposed<2>},
          .weights = weight_blocks,
          .gradient = gradient_block,
          .softcap = softcap_block,
          .load_rows = {load_panels<Fp32>, load_panels<Bf16>, load_panels<Fp16>},
          .store_rows = {store_panels<Fp32>, store_panels<Bf16>, store_panels<Fp16>},
          .dot = dot_lanes,
          .add = add_terms,
          .terms = pair_terms,
          .sum_terms = {sum_per_lane, sum_per_key, sum_per_distance}};
}
