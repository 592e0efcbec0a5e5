// The micro-kernels of the backward pass, written once over the vector layer; included after
// kernels.inl and under the same rules.

constexpr int kWidth = kMaxVectors * kLanes;

// acc[r][w] += A(first + r, .) B for a block of rows; the reduction runs along A's columns.
template <int rows, int W>
inline void row_products(const ProductArgs& args, int first, F (&acc)[rows][W]) {
  const float* a = args.a + static_cast<int64_t>(first) * kWidth;
  const float* b = args.b;
  for (int begin = 0; begin < args.depth; begin += kWidth, a += args.a_stride) {
    const int count = args.depth - begin < kWidth ? args.depth - begin : kWidth;
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
inline void load_block(const float* c, F (&acc)[rows][W]) {
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
    for (int w = 0; w < W; ++w) acc[r][w] = load(c + r * kWidth + w * kLanes);
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

// What a kernel does with one block of `rows` rows from `first`.
struct ScoreRows {
  template <int rows>
  static void run(const ProductArgs& args, int first) {
    F acc[rows][kMaxVectors];
    clear_block(acc);
    row_products(args, first, acc);
    const F scale = all(args.scale);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
      for (int w = 0; w < kMaxVectors; ++w) acc[r][w] = mul(acc[r][w], scale);
    store_block(args.c + static_cast<int64_t>(first) * kWidth, acc);
  }
};

template <int W>
struct AccumulateRows {
  template <int rows>
  static void run(const ProductArgs& args, int first) {
    float* c = args.c + static_cast<int64_t>(first) * kWidth;
    F acc[rows][W];
    load_block(c, acc);
    row_products(args, first, acc);
    store_block(c, acc);
  }
};

template <int W>
struct AccumulateColumns {
  template <int rows>
  static void run(const ProductArgs& args, int first) {
    float* c = args.c + static_cast<int64_t>(first) * kWidth;
    F acc[rows][W];
    load_block(c, acc);
    column_products(args, first, acc);
    store_block(c, acc);
  }
};

inline M is_masked(const float* p) {
  return equal_int(load_int(reinterpret_cast<const int32_t*>(p)), all_int(-0x7fffffff - 1));
}

struct GradientRows {
  template <int rows>
  static void run(const GradientArgs& args, int first) {
    F acc[rows][kMaxVectors];
    clear_block(acc);
    row_products(args.product, first, acc);
    const int64_t at = static_cast<int64_t>(first) * kWidth;
    const float* p = args.p + at;
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
          acc[r][w] = select(is_masked(p + r * kWidth + w * kLanes), all(0.0f), acc[r][w]);
    }
    if (args.dlogit != nullptr) store_block(args.dlogit + at, acc);
    if (args.slope != nullptr) {
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r)
        for (int w = 0; w < kMaxVectors; ++w)
          acc[r][w] = mul(acc[r][w], load(args.slope + at + r * kWidth + w * kLanes));
    }
    const F scale = all(args.product.scale);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
      for (int w = 0; w < kMaxVectors; ++w) acc[r][w] = mul(acc[r][w], scale);
    store_block(args.product.c + at, acc);
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
  M visible = both(less_int(load_int(args.lo + lane), all_int(j + 1)),
                   less_int(all_int(j), load_int(args.hi + lane)));
  if (args.document_q != nullptr) {
    visible =
        both(visible, equal_int(load_int(args.document_q + lane), all_int(args.document_k[j])));
  }
  return visible;
}

template <bool has_masks>
inline void weights_of(const WeightArgs& args) {
  const F lowest = all(-__builtin_inff()), masked = all(-0.0f), highest = all(88.0f);
  F base[kMaxVectors], weight[kMaxVectors];
  for (int w = 0; w < kMaxVectors; ++w) {
    base[w] = load(args.base + w * kLanes);
    weight[w] = load(args.weight + w * kLanes);
  }
  float* at = args.scores;
  for (int j = 0; j < args.num_keys; ++j, at += kWidth) {
    for (int w = 0; w < kMaxVectors; ++w) {
      // An lse below the scores it was made of is not one; its weights end at exp(88).
      F x = sub(load(at + w * kLanes), base[w]);
      x = select(less(highest, x), highest, x);
      F p = mul(exp_of(x), weight[w]);
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

__attribute__((noinline)) void weight_block(const WeightArgs& args) {
  if (args.has_masks) {
    weights_of<true>(args);
  } else {
    weights_of<false>(args);
  }
}

// tanh as in tanh_of(), but rounded once less: the gradient feels each of its errors softcap times.
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
    const F t = select(less(size, all(0.625f)), tanh_of(x), signed_far);
    store(args.scores + n, mul(cap, t));
    store(args.slope + n, mul(rest, half));
  }
}

// x * 0 is 0 for every finite x and NaN otherwise, and a NaN stays in a sum.
__attribute__((noinline)) bool load_panels(const RowsArgs& args) {
  const F zero = all(0.0f);
  F sum = zero;
  for (int begin = 0; begin < args.columns; begin += kWidth) {
    const int count = args.columns - begin < kWidth ? args.columns - begin : kWidth;
    const float* from = args.from + begin;
    float* to = args.to + begin / kWidth * args.panel_stride;
    for (int r = 0; r < args.num_rows; ++r, from += args.row_stride, to += kWidth) {
      if (count < kWidth) {
        for (int c = 0; c < kWidth; ++c) to[c] = c < count ? from[c] : 0.0f;
      }
      for (int w = 0; w < kMaxVectors; ++w) {
        const F x = load((count < kWidth ? to : from) + w * kLanes);
        sum = fma(x, zero, sum);
        store(to + w * kLanes, x);
      }
    }
  }
  float lanes[kLanes];
  store(lanes, sum);
  float rest = 0;
  for (int lane = 0; lane < kLanes; ++lane) rest += lanes[lane];
  return rest == 0.0f;
}

__attribute__((noinline)) void store_panels(const RowsArgs& args) {
  for (int begin = 0; begin < args.columns; begin += kWidth) {
    const int count = args.columns - begin < kWidth ? args.columns - begin : kWidth;
    const float* from = args.from + begin / kWidth * args.panel_stride;
    float* to = args.to + begin;
    for (int r = 0; r < args.num_rows; ++r, from += kWidth, to += args.row_stride) {
      if (count == kWidth) {
        for (int w = 0; w < kMaxVectors; ++w) store(to + w * kLanes, load(from + w * kLanes));
      } else {
        for (int c = 0; c < count; ++c) to[c] = from[c];
      }
    }
  }
}

// One after the other from the first, like the products dP that delta is taken from: where a single
// key has all the weight both are the same number. Rows side by side hide the latency of a chain.
template <int rows>
inline void dot_rows_of(const DotArgs& args, int first) {
  const float *a = args.a + first * args.a_stride, *b = args.b + first * args.b_stride;
  float sum[rows] = {};
  for (int c = 0; c < args.columns; ++c) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
      sum[r] = fma_one(a[r * args.a_stride + c], b[r * args.b_stride + c], sum[r]);
  }
  for (int r = 0; r < rows; ++r) args.sums[first + r] = sum[r];
}

__attribute__((noinline)) void dot_rows(const DotArgs& args) {
  int r = 0;
  for (; r + 8 <= args.num_rows; r += 8) dot_rows_of<8>(args, r);
  for (; r < args.num_rows; ++r) dot_rows_of<1>(args, r);
}

constexpr BackwardKernels make_backward_table() {
  return {.scores = score_product,
          .accumulate = {accumulate_product<1>, accumulate_product<2>},
          .accumulate_transposed = {accumulate_transposed<1>, accumulate_transposed<2>},
          .weights = weight_block,
          .gradient = gradient_block,
          .softcap = softcap_block,
          .load_rows = load_panels,
          .store_rows = store_panels,
          .dot = dot_rows};
}
