// The micro-kernels, written once over the vector layer (simd_*.h) that was included before this
// file. Included inside a namespace and a target region of each isa_*.cc: nothing here may call an
// inline function of the standard library, which the linker could keep, compiled for this
// instruction set. Each kernel is noinline: inlined into a driver, g++ 12 hoists constants and
// spills accumulators.

#include "cpu/convert.inl"

// exp(x) for x <= 0, NaN for NaN. Degree 5, relative minimax of exp(f) for |f| <= ln(2) / 2 with
// p(0) = 1, so that exp(0) is 1 exactly; 0 exactly below -87.68, where a float would become
// denormal.
inline F exp_of(F x) {
  const F from = power_input(x);
  // 1.5 * 2^23 rounds to an integer; + 127 makes its low bits the biased exponent.
  const F magic = all(12583039.0f);
  const F biased = fma(from, all(1.44269504f), magic);
  const F n = sub(biased, magic);
  const F f = minus_ln2_times(from, n);
  F p = fma(all(8.290314698e-3f), f, all(4.189792931e-2f));
  p = fma(p, f, all(1.666763619e-1f));
  p = fma(p, f, all(4.999914954e-1f));
  p = fma(p, f, all(9.999997072e-1f));
  p = fma(p, f, all(1.0f));
  return times_power(p, n, biased, x);
}

// x P(x^2) / Q(x^2), degrees 4 and 4, relative minimax on |x| <= 9.1 (2.3e-8); it goes on growing
// beyond, so that what is cut off at 1 is 1 exactly.
inline F tanh_of(F x) {
  const F limit = all(10.0f), one = all(1.0f);
  const F c = min(limit, max(sub(all(0.0f), limit), x));
  const F z = mul(c, c);
  F p = fma(all(1.31775320e-8f), z, all(2.04811931e-5f));
  p = fma(p, z, all(3.48781142e-3f));
  p = fma(p, z, all(1.33744761e-1f));
  p = fma(p, z, one);
  F q = fma(all(7.70404995e-7f), z, all(3.27292073e-4f));
  q = fma(q, z, all(2.58473903e-2f));
  q = fma(q, z, all(4.67077881e-1f));
  q = fma(q, z, one);
  const F y = mul(mul(p, c), inverse(q));
  return min(one, max(sub(all(0.0f), one), y));
}

// Products summed in one chain of fmas. A chain's error grows with its length: short ones, added
// up, keep a dot product as exact as a library's, which has many partial sums. Chains of 32 would
// cost 2 % of the speed.
constexpr int kChain = 128;

// Where byte n of a row to come is. A lane without a row has no pointer, and a prefetch may be of
// any address: these are numbers.
__attribute__((always_inline)) inline uintptr_t address_ahead(const void* row, int n) {
  return reinterpret_cast<uintptr_t>(row) + static_cast<uintptr_t>(n);
}
__attribute__((always_inline)) inline void prefetch_address(uintptr_t address) {
  __builtin_prefetch(reinterpret_cast<const void*>(address), 0, 2);
}

// Hands out the cache lines of rows to come, one per call. Always inlined: g++ takes a function
// that only prefetches for one without effects, and drops it.
struct LinesAhead {
  const void* const* row;
  const void* const* end;
  uintptr_t at;
  int lines, left;  // of a row

  __attribute__((always_inline)) explicit LinesAhead(const Prefetch& next)
      : row(next.rows),
        end(next.rows + next.num_rows),
        at(next.num_rows > 0 ? address_ahead(*next.rows, 0) : 0),
        lines((next.num_bytes + 63) / 64),
        left(lines) {}
  __attribute__((always_inline)) void ask() {
    if (row == end) return;
    prefetch_address(at);
    at += 64;
    if (--left > 0) return;
    left = lines;
    if (++row != end) at = address_ahead(*row, 0);
  }
};

constexpr int kColumnsPerLine = 8;  // of the reduction, between two lines asked for

// What one step of a reduction adds up: the product of floats, one a word.
struct Floats {
  static constexpr int kPerWord = 1;
  static F add_product(F sum, F a, F b) { return fma(a, b, sum); }
};

template <class Step, int rows, int W>
__attribute__((always_inline)) inline void add_column(const float* k, int64_t stride,
                                                      const float* q, F (&acc)[rows][W]) {
  F b[W];
  for (int w = 0; w < W; ++w) b[w] = load(q + w * kLanes);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    const F a = all(k[r * stride]);
    for (int w = 0; w < W; ++w) acc[r][w] = Step::add_product(acc[r][w], b[w], a);
  }
}

// A block of `rows` keys by W vectors of queries; the reduction runs along the words of head_dim.
// Packed keys have strides that the compiler knows.
template <class Step, int rows, int W, bool is_packed>
inline void qk_rows(const QkArgs& args, int first, F (&row_max)[W], LinesAhead& ahead) {
  const float* k = args.k + first / kRows * args.block_stride;
  const int64_t stride = is_packed ? 1 : args.row_stride;
  const int64_t step = is_packed ? kRows : args.column_stride;
  float* scores = args.scores + static_cast<int64_t>(first) * (W * kLanes);
  const F scale = all(args.scale);
  const float* q = args.q;
  const int words = (args.head_dim + Step::kPerWord - 1) / Step::kPerWord;
  for (int begin = 0; begin < words; begin += kChain) {
    const int end = begin + kChain < words ? begin + kChain : words;
    F acc[rows][W];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
      for (int w = 0; w < W; ++w) acc[r][w] = all(0.0f);
    int c = begin;
    if constexpr (rows == kRows) {
      for (; c + kColumnsPerLine <= end; c += kColumnsPerLine) {
        ahead.ask();
#pragma GCC unroll 8
        for (int i = 0; i < kColumnsPerLine; ++i, q += W * kLanes, k += step)
          add_column<Step, rows, W>(k, stride, q, acc);
      }
    }
    for (; c < end; ++c, q += W * kLanes, k += step) add_column<Step, rows, W>(k, stride, q, acc);
    if (begin > 0) {
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r)
        for (int w = 0; w < W; ++w) acc[r][w] = add(load(scores + (r * W + w) * kLanes), acc[r][w]);
    }
    // Scaled last, as the definition reads: scaled queries would round every product differently.
    if (end == words) {
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        for (int w = 0; w < W; ++w) {
          if (args.scale != 1) acc[r][w] = mul(acc[r][w], scale);
          row_max[w] = max(acc[r][w], row_max[w]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
      for (int w = 0; w < W; ++w) store(scores + (r * W + w) * kLanes, acc[r][w]);
  }
}

// The last n < kRows rows of a run, if any.
template <class Step, int rows, int W, bool is_packed>
inline void qk_tail(const QkArgs& args, int first, F (&row_max)[W], LinesAhead& ahead) {
  if constexpr (rows > 0) {
    if (args.num_keys - first == rows) {
      qk_rows<Step, rows, W, is_packed>(args, first, row_max, ahead);
    } else {
      qk_tail<Step, rows - 1, W, is_packed>(args, first, row_max, ahead);
    }
  }
}

template <class Step, int W, bool is_packed>
__attribute__((noinline)) void qk_run(const QkArgs& args) {
  F row_max[W];
  for (int w = 0; w < W; ++w) row_max[w] = mul(load(args.max_in + w * kLanes), all(1 / args.unit));
  LinesAhead ahead(args.next);
  int j = 0;
  for (; j + kRows <= args.num_keys; j += kRows)
    qk_rows<Step, kRows, W, is_packed>(args, j, row_max, ahead);
  qk_tail<Step, kRows - 1, W, is_packed>(args, j, row_max, ahead);
  for (int w = 0; w < W; ++w) store(args.max_out + w * kLanes, mul(row_max[w], all(args.unit)));
}

template <int W>
void qk_block(const QkArgs& args) {
  if (args.row_stride == 1 && args.column_stride == kRows) {
    qk_run<Floats, W, true>(args);
  } else {
    qk_run<Floats, W, false>(args);
  }
}

// Two maxima a lane, so that one need not wait for the other.
template <int W>
__attribute__((noinline)) void row_maxima(const float* scores, int num_keys, const float* max_in,
                                          float* max_out) {
  F even[W], odd[W];
  for (int w = 0; w < W; ++w) {
    even[w] = load(max_in + w * kLanes);
    odd[w] = all(-__builtin_inff());
  }
  int j = 0;
  for (; j + 2 <= num_keys; j += 2, scores += 2 * W * kLanes) {
    for (int w = 0; w < W; ++w) {
      even[w] = max(load(scores + w * kLanes), even[w]);
      odd[w] = max(load(scores + (W + w) * kLanes), odd[w]);
    }
  }
  for (int w = 0; w < W; ++w) {
    if (j < num_keys) even[w] = max(load(scores + w * kLanes), even[w]);
    store(max_out + w * kLanes, max(odd[w], even[w]));
  }
}

// A cap so small that its inverse is infinite still saturates, and a score of 0 stays 0.
__attribute__((noinline)) void cap_scores(float* scores, int64_t count, float softcap) {
  const float inverse = 1.0f / softcap;
  const F inverse_cap = all(inverse < __FLT_MAX__ ? inverse : __FLT_MAX__), cap = all(softcap);
  for (int64_t n = 0; n < count; n += kLanes)
    store(scores + n, mul(cap, tanh_of(mul(load(scores + n), inverse_cap))));
}

template <int W>
__attribute__((noinline)) void logit_block(const LogitArgs& args) {
  const F infinity = all(__builtin_inff());
  const F lowest = sub(all(0.0f), infinity);
  if (args.softcap > 0)
    cap_scores(args.scores, static_cast<int64_t>(args.num_keys) * W * kLanes, args.softcap);
  if (args.bias == nullptr && args.slope == nullptr && args.lo == nullptr &&
      args.document_q == nullptr)
    return row_maxima<W>(args.scores, args.num_keys, args.max_in, args.max_out);
  for (int w = 0; w < W; ++w) {
    const int lane = w * kLanes;
    F row_max = load(args.max_in + lane);
    for (int j = 0; j < args.num_keys; ++j) {
      float* at = args.scores + static_cast<int64_t>(j) * (W * kLanes) + lane;
      F s = load(at);
      M visible = always();
      if (args.bias != nullptr) {
        const F bias = load(args.bias + static_cast<int64_t>(j) * (W * kLanes) + lane);
        // Only a bias of -inf masks: a sum that overflows is the lowest finite number.
        const F sum = select(equal(s, lowest), s, max(all(-__FLT_MAX__), add(s, bias)));
        s = select(equal(bias, lowest), lowest, sum);
      }
      if (args.slope != nullptr) {
        const F distance = to_float(sub_int(load_int(args.q_pos + lane), all_int(j)));
        s = sub(s, mul(load(args.slope + lane), magnitude(distance)));
      }
      if (args.lo != nullptr) {
        // lo <= j is lo < j + 1.
        visible = both(less_int(load_int(args.lo + lane), all_int(j + 1)),
                       less_int(all_int(j), load_int(args.hi + lane)));
      }
      if (args.document_q != nullptr) {
        visible =
            both(visible, equal_int(load_int(args.document_q + lane), all_int(args.document_k[j])));
      }
      s = select(visible, s, lowest);
      row_max = max(s, row_max);
      store(at, s);
    }
    store(args.max_out + lane, row_max);
  }
}

// What scores are taken relative to: the maximum, or 0 where nothing was seen (-inf - -inf is NaN).
inline F finite_base(F row_max) {
  const F lowest = all(-__builtin_inff());
  return select(equal(row_max, lowest), all(0.0f), row_max);
}

// Weights of kPerWord keys in a row become one row of words, in place: a row of words is written
// after the scores that lie there have been read.
template <class Step, int W>
__attribute__((noinline)) void softmax_block(const SoftmaxArgs& args) {
  constexpr int kWidth = W * kLanes;
  const F unit = all(args.unit);
  F base[W], sum[4][W];
  for (int w = 0; w < W; ++w) {
    base[w] = finite_base(load(args.max_out + w * kLanes));
    for (int u = 0; u < 4; ++u) sum[u][w] = all(0.0f);
  }
  // Four sums by key modulo 4: leading masked keys, whose weight is 0, do not change the grouping.
  const float* at = args.scores;
  float* to = args.scores;
  F first[W] = {};  // of a pair
  int j = 0;
  for (; j + 4 <= args.num_keys; j += 4, at += 4 * kWidth, to += 4 / Step::kPerWord * kWidth) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      for (int w = 0; w < W; ++w) {
        const F p = exp_of(fms(load(at + u * kWidth + w * kLanes), unit, base[w]));
        sum[u][w] = add(sum[u][w], p);
        if constexpr (Step::kPerWord == 1) {
          store(to + u * kWidth + w * kLanes, p);
        } else {
          if (u % 2 == 0) {
            first[w] = p;
          } else {
            store(to + u / 2 * kWidth + w * kLanes, Step::word_of(first[w], p));
          }
        }
      }
    }
  }
  for (int u = 0; j < args.num_keys; ++j, ++u, at += kWidth) {
    for (int w = 0; w < W; ++w) {
      const F p = exp_of(fms(load(at + w * kLanes), unit, base[w]));
      for (int s = 0; s < 3; ++s)
        if (s == u) sum[s][w] = add(sum[s][w], p);
      if constexpr (Step::kPerWord == 1) {
        store(to + u * kWidth + w * kLanes, p);
      } else {
        const bool is_second = u % 2 != 0;
        store(to + u / 2 * kWidth + w * kLanes,
              Step::word_of(is_second ? first[w] : p, is_second ? p : all(0.0f)));
        first[w] = p;
      }
    }
  }
  for (int w = 0; w < W; ++w) {
    const F alpha = exp_of(sub(load(args.max_in + w * kLanes), base[w]));
    const F total = add(add(sum[0][w], sum[1][w]), add(sum[2][w], sum[3][w]));
    store(args.alpha + w * kLanes, alpha);
    store(args.row_sum + w * kLanes, fma(load(args.row_sum + w * kLanes), alpha, total));
  }
}

// A block of `rows` columns of V by W vectors of queries; the reduction runs along the keys.
template <class Step, int rows, int W>
inline void pv_rows(const PvArgs& args, int first) {
  float* out = args.out + static_cast<int64_t>(first) * (W * kLanes);
  F acc[rows][W];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
    for (int w = 0; w < W; ++w) acc[r][w] = all(0.0f);
  const float* v = args.v + first / kRows * args.block_stride;
  const float* p = args.p;
  const int whole = args.num_keys / Step::kPerWord;
#pragma GCC unroll 4
  for (int n = 0; n < whole; ++n, v += args.row_stride, p += W * kLanes) {
    F b[W];
    for (int w = 0; w < W; ++w) b[w] = load(p + w * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const F a = all(v[r]);
      for (int w = 0; w < W; ++w) acc[r][w] = Step::add_product(acc[r][w], b[w], a);
    }
  }
  if constexpr (Step::kPerWord == 2) {
    // The other half of the last value may be a key that is not of this run, and a NaN.
    if (args.num_keys % 2 != 0) {
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const F a = Step::first_of(all(v[r]));
        for (int w = 0; w < W; ++w)
          acc[r][w] = Step::add_product(acc[r][w], load(p + w * kLanes), a);
      }
    }
  }
  // A block is summed by itself and then added: its chain does not start from the running total.
  if (!args.is_first) {
    F alpha[W];
    for (int w = 0; w < W; ++w) alpha[w] = load(args.alpha + w * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
      for (int w = 0; w < W; ++w)
        acc[r][w] = fma(alpha[w], load(out + (r * W + w) * kLanes), acc[r][w]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
    for (int w = 0; w < W; ++w) store(out + (r * W + w) * kLanes, acc[r][w]);
}

template <class Step, int rows, int W>
inline void pv_tail(const PvArgs& args, int first) {
  if constexpr (rows > 0) {
    if (args.head_dim_v - first == rows) {
      pv_rows<Step, rows, W>(args, first);
    } else {
      pv_tail<Step, rows - 1, W>(args, first);
    }
  }
}

template <class Step, int W>
__attribute__((noinline)) void pv_block(const PvArgs& args) {
  int c = 0;
  for (; c + kRows <= args.head_dim_v; c += kRows) pv_rows<Step, kRows, W>(args, c);
  pv_tail<Step, kRows - 1, W>(args, c);
}

#include "cpu/dropout.inl"
#include "cpu/pack.inl"
#include "cpu/pair_kernels.inl"

#include "cpu/narrow.inl"

// An empty state (sum 0, maximum -inf) changes nothing, bit for bit: its factor is 0, the
// other's 1.
template <int W>
__attribute__((noinline)) void merge_states(const MergeStateArgs& args) {
  for (int w = 0; w < W; ++w) {
    const int lane = w * kLanes;
    const F max_a = load(args.max_a + lane), max_b = load(args.max_b + lane);
    const F row_max = max(max_a, max_b);
    const F base = finite_base(row_max);
    const F weight_a = exp_of(sub(max_a, base)), weight_b = exp_of(sub(max_b, base));
    for (int c = 0; c < args.head_dim_v; ++c) {
      const int64_t at = static_cast<int64_t>(c) * (W * kLanes) + lane;
      store(args.out_a + at,
            fma(weight_a, load(args.out_a + at), mul(weight_b, load(args.out_b + at))));
    }
    const F sum = fma(weight_a, load(args.sum_a + lane), mul(weight_b, load(args.sum_b + lane)));
    store(args.sum_a + lane, sum);
    store(args.max_a + lane, row_max);
  }
}

__attribute__((noinline)) void exp_all(const float* x, float* y, int n) {
  for (int i = 0; i < n; i += kLanes) store(y + i, exp_of(load(x + i)));
}

__attribute__((noinline)) void tanh_all(const float* x, float* y, int n) {
  for (int i = 0; i < n; i += kLanes) store(y + i, tanh_of(load(x + i)));
}

inline float sum_of(F x) {
  float lanes[kLanes];
  store(lanes, x);
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
  return sum;
}

__attribute__((noinline)) void softmax_row(float* row, int64_t n) {
  const int64_t whole = n / kLanes * kLanes;
  F maxima = all(-__builtin_inff());
  for (int64_t j = 0; j < whole; j += kLanes) maxima = max(load(row + j), maxima);
  float lanes[kLanes];
  store(lanes, maxima);
  float row_max = lanes[0];
  for (int lane = 1; lane < kLanes; ++lane) row_max = lanes[lane] > row_max ? lanes[lane] : row_max;
  for (int64_t j = whole; j < n; ++j) row_max = row[j] > row_max ? row[j] : row_max;
  F sums = all(0.0f);
  for (int64_t j = 0; j < whole; j += kLanes) {
    const F p = exp_of(sub(load(row + j), all(row_max)));
    store(row + j, p);
    sums = add(sums, p);
  }
  float sum = sum_of(sums);
  for (int64_t j = whole; j < n; ++j) {
    store(lanes, exp_of(all(row[j] - row_max)));
    sum += row[j] = lanes[0];
  }
  const float inverse = 1 / sum;
  for (int64_t j = 0; j < whole; j += kLanes) store(row + j, mul(load(row + j), all(inverse)));
  for (int64_t j = whole; j < n; ++j) row[j] *= inverse;
}

#include "cpu/expression_kernels.inl"

constexpr int kPeakChains = 2 * kRows;

__attribute__((noinline)) float fma_peak(int64_t rounds) {
  F acc[kPeakChains];
#pragma GCC unroll 16
  for (int i = 0; i < kPeakChains; ++i) acc[i] = all(0.37f + static_cast<float>(i));
  const F factor = all(0.73f), term = all(0.31f);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kPeakChains; ++i) acc[i] = fma(acc[i], factor, term);
  }
  F sum = acc[0];
#pragma GCC unroll 16
  for (int i = 1; i < kPeakChains; ++i) sum = add(sum, acc[i]);
  float lanes[kLanes];
  store(lanes, sum);
  return lanes[0];
}

constexpr MicroKernels make_table(Isa isa) {
  return {.isa = isa,
          .lanes = kLanes,
          .rows = kRows,
          .qk = {qk_block<1>, qk_block<2>},
          .logits = {logit_block<1>, logit_block<2>},
          .bias = {{turn_pairs<Added<Fp32>, 1>, turn_pairs<Added<Fp32>, 2>},
                   {turn_pairs<Added<Bf16>, 1>, turn_pairs<Added<Bf16>, 2>},
                   {turn_pairs<Added<Fp16>, 1>, turn_pairs<Added<Fp16>, 2>}},
          .hide = {turn_pairs<Hidden, 1>, turn_pairs<Hidden, 2>},
          .mask_content = mask_content,
          .evaluate = {evaluate_section<1>, evaluate_section<2>},
          .mask = {mask_block<1>, mask_block<2>},
          .softmax = {softmax_block<Floats, 1>, softmax_block<Floats, 2>},
          .pv = {pv_block<Floats, 1>, pv_block<Floats, 2>},
          .narrow_qk = {narrow_qk<Floats, Fp32>, narrow_qk<Floats, Bf16>, narrow_qk<Floats, Fp16>,
                        narrow_qk<Floats, E4m3>},
          .narrow_softmax = narrow_softmax,
          .narrow_pv = {narrow_pv<Floats, Fp32>, narrow_pv<Floats, Bf16>, narrow_pv<Floats, Fp16>,
                        narrow_pv<Floats, E4m3>},
          .drop = {drop_block<1>, drop_block<2>},
          .pack_k = {pack_keys<Fp32>, pack_keys<Bf16>, pack_keys<Fp16>, pack_keys<E4m3>},
          .pack_v = {pack_values<Fp32>, pack_values<Bf16>, pack_values<Fp16>, pack_values<E4m3>},
          .merge = {merge_states<1>, merge_states<2>},
          .pack = {{pack_rows<Fp32, 1>, pack_rows<Fp32, 2>},
                   {pack_rows<Bf16, 1>, pack_rows<Bf16, 2>},
                   {pack_rows<Fp16, 1>, pack_rows<Fp16, 2>},
                   {pack_rows<E4m3, 1>, pack_rows<E4m3, 2>}},
          .unpack = {{unpack_rows<Fp32, 1>, unpack_rows<Fp32, 2>},
                     {unpack_rows<Bf16, 1>, unpack_rows<Bf16, 2>},
                     {unpack_rows<Fp16, 1>, unpack_rows<Fp16, 2>}},
          .has_nonfinite = {has_nonfinite<Fp32>, has_nonfinite<Bf16>, has_nonfinite<Fp16>,
                            has_nonfinite<E4m3>},
          .decode = {decode_all<Fp32>, decode_all<Bf16>, decode_all<Fp16>, decode_all<E4m3>},
          .encode = {encode_all<Fp32>, encode_all<Bf16>, encode_all<Fp16>},
          .exp = exp_all,
          .tanh = tanh_all,
          .softmax_row = softmax_row,
          .fma_peak = fma_peak,
          .flops_per_round = 2 * kPeakChains * kLanes};
}
