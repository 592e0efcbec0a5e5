// A query row by one warp: what the keys are to know of it, and dq. 32 keys at a time, a key per
// lane for what is computed of pairs, then columns across the lanes.
#pragma once

#include "cuda/rows/backward/pairs.cuh"
#include "cuda/rows/backward/row_sum.cuh"

namespace sirdar::rows {

// From here on the rounding of an fp32 lse, which exp would turn into a relative error of 4e-6 and
// more of every weight, is not taken to mean anything: the row's own softmax is made again.
inline constexpr float kLargeLse = 128;

// The part of the saved softmax that these keys hold; 1 if the saved lse is this row's own,
// rounded.
SIRDAR_DEVICE float share_of(double own_lse, float saved_lse) {
  const double difference = own_lse - static_cast<double>(saved_lse);
  const double size = own_lse < 0 ? -own_lse : own_lse;
  const bool is_own = difference <= size * 0x1p-23 && -difference <= size * 0x1p-23;
  return is_own ? 1.0f : language::exp(static_cast<float>(difference));
}

template <BackwardConfig config, class Modification>
struct QueryRow {
  using Stored = StoredOf<config.element>;
  using StoredOut = StoredOf<config.element_out>;

  const BackwardParams& params;
  const Pairs<config, Modification> pairs;
  int row, lane;
  StagedRow query, dout;

  SIRDAR_DEVICE QueryRow(const BackwardParams& all_params, const Modification& modification,
                         const Head& head, int row_of_head, uint32_t shared, int own_lane)
      : params(all_params),
        pairs{all_params, modification, head},
        row(row_of_head),
        lane(own_lane),
        query{shared},
        dout{shared + 4 * static_cast<uint32_t>(config.columns)} {}

  SIRDAR_DEVICE void stage() const {
    const Head& at = pairs.at;
    ptx::syncwarp();  // the next row takes the place of the one before
    query.template load<config.element>(
        static_cast<const Stored*>(params.q) + params.q_rows.offset(at.batch, at.q, row, at.head),
        params.head_dim, config.columns, lane);
    dout.template load<config.element_out>(dout_row(), params.head_dim_v, config.columns_v, lane);
  }

  // After stage().
  SIRDAR_DEVICE QueryState state() const {
    const Head& at = pairs.at;
    const float lse = params.lse[params.lse_rows.offset(at.batch, at.q, row, at.head)];
    if (language::absolute(lse) == language::kInfinity) return {language::kInfinity, 0, 0, 0};
    QueryState state{lse, 1, delta(), 0};
    float sink = kMinusInfinity;
    if (params.sink != nullptr) {
      sink = ptx::load_constant(params.sink + at.head * params.stride_sink);
    }
    if (language::absolute(lse) > kLargeLse) {
      soften(sink, lse, state);
    } else {
      state.sink = -language::exp(sink - lse) * state.delta;
    }
    return state;
  }

  // What 32 keys from `first` on, of which those in `keys` may be visible, make of the row. Returns
  // which are; each of those calls then(of_key, logit) when `gradient` is known.
  template <class Row, class Then>
  SIRDAR_DEVICE uint32_t meet(const Row& of_row, int first, IntRange keys, const QueryState& state,
                              PairGradient& gradient, const Then& then) const {
    const Head& at = pairs.at;
    const int key = first + lane;
    const auto of_key = pairs.begin_key(key);
    float bias = 0;
    gradient = {0, 0, 0, 0};
    const bool is_seen =
        keys.begin <= key && key < keys.end && pairs.is_visible(of_row, of_key, row, key, bias);
    if (is_seen) {
      const Logit logit = pairs.logit(of_row, of_key, row, key, bias, product(key));
      const Stored* v = static_cast<const Stored*>(params.v) +
                        params.v_rows.offset(at.batch, at.k, key, at.head_kv);
      const float dout_v =
          dout.template dot<config.element>(v, params.head_dim_v, params.reads_v_vectors != 0);
      gradient = pairs.gradient(of_row, of_key, row, key, logit, dout_v, state);
      then(of_key, logit);
    }
    return ptx::ballot_sync(is_seen);
  }

  template <class Row>
  SIRDAR_DEVICE uint32_t meet(const Row& of_row, int first, IntRange keys, const QueryState& state,
                              PairGradient& gradient) const {
    return meet(of_row, first, keys, state, gradient, [](const auto&, const Logit&) {});
  }

  SIRDAR_DEVICE const Stored* key_row(int key) const {
    const Head& at = pairs.at;
    return static_cast<const Stored*>(params.k) +
           params.k_rows.offset(at.batch, at.k, key, at.head_kv);
  }

 private:
  SIRDAR_DEVICE const StoredOut* dout_row() const {
    const Head& at = pairs.at;
    return static_cast<const StoredOut*>(params.dout) +
           params.dout_rows.offset(at.batch, at.q, row, at.head);
  }

  SIRDAR_DEVICE float product(int key) const {
    return query.template dot<config.element>(key_row(key), params.head_dim,
                                              params.reads_k_vectors != 0);
  }

  // The product of dout and out, less dlse.
  SIRDAR_DEVICE float delta() const {
    const Head& at = pairs.at;
    const StoredOut* own = dout_row();
    const StoredOut* out = static_cast<const StoredOut*>(params.out) +
                           params.out_rows.offset(at.batch, at.q, row, at.head);
    float sum = 0;
    for (int d = lane; d < params.head_dim_v; d += 32) {
      sum = ptx::fma_of(load_number<config.element_out>(own + d),
                        load_number<config.element_out>(out + d), sum);
    }
    sum = warp_sum(sum);
    if (params.dlse == nullptr) return sum;
    return sum - params.dlse[params.dlse_rows.offset(at.batch, at.q, row, at.head)];
  }

  // Maximum and sum of the row's logits as the forward makes them, and what follows from them.
  SIRDAR_DEVICE void soften(float sink, float lse, QueryState& state) const {
    const auto [begin, end] = pairs.keys_of(row);
    const auto of_row = pairs.begin_row(row);
    float largest = kMinusInfinity, sum = 0;
    for (int first = begin; first < end; first += 32) {
      const int key = first + lane;
      const auto of_key = pairs.begin_key(key);
      float bias = 0, logit = kMinusInfinity;
      const bool is_seen = key < end && pairs.is_visible(of_row, of_key, row, key, bias);
      if (is_seen) logit = pairs.logit(of_row, of_key, row, key, bias, product(key)).value;
      const float top = ptx::max_of(largest, warp_max(logit));
      if (top != largest) sum *= language::exp(largest - top);
      largest = top;
      if (is_seen) sum += language::exp(logit - (top == kMinusInfinity ? 0.0f : top));
    }
    sum = warp_sum(sum);
    const float level = ptx::max_of(largest, sink);
    if (level == kMinusInfinity && sum == 0.0f) {
      state = {language::kInfinity, 0, 0, 0};  // these keys hold nothing of the row
      return;
    }
    const float own_weight = sum == 0.0f ? 0.0f : language::exp(largest - level);
    const float sink_weight = language::exp(sink - level);
    const float total = sum * own_weight + sink_weight;
    const float share =
        share_of(static_cast<double>(level) + static_cast<double>(language::log(total)), lse);
    // A row whose keys weigh nothing still gives the sink its gradient; one with a logit of +inf is
    // NaN.
    state.base = largest == kMinusInfinity        ? 0.0f
                 : largest == language::kInfinity ? language::kNaN
                                                  : largest;
    state.weight = own_weight / total * share;
    state.sink = -(sink_weight / total * share) * state.delta;
  }
};

// A row of the call: `index` counts rows of one K/V head as neighbours, of them those of one
// position, the last positions first.
struct CallRow {
  Head at;
  int row;

  SIRDAR_DEVICE static CallRow of(const BackwardParams& params, long long index) {
    const int group = params.group_size;
    const long long position = index / group, list = position / params.query.seqlen;
    const int head_kv = static_cast<int>(list % params.num_heads_kv);
    return {Head::of(params, static_cast<int>(list / params.num_heads_kv),
                     head_kv * group + static_cast<int>(index % group)),
            static_cast<int>(params.query.seqlen - 1 - position % params.query.seqlen)};
  }
};

// kMakesDq: otherwise the row leaves its state and its part of dbias alone.
template <BackwardConfig config, bool kMakesDq, class Modification>
SIRDAR_DEVICE void compute_query_row(const BackwardParams& params, const Modification& modification,
                                     long long index, uint32_t shared) {
  const int lane = ptx::thread_idx_x() % 32;
  const CallRow call = CallRow::of(params, index);
  const Head& at = call.at;
  const int row = call.row;
  if (row >= at.q.stored) return;
  QueryState state{language::kInfinity, 0, 0, 0};
  RowSum<config.element, config.columns> dq;
  dq.clear();
  float bias_term = 0;
  if (row < at.q.length) {
    const QueryRow<config, Modification> own(params, modification, at, row, shared, lane);
    own.stage();
    state = own.state();
    IntRange keys = own.pairs.keys_of(row);
    const bool is_needed = kMakesDq || params.bias_of_rows != nullptr;
    if (!takes_part(state) || !is_needed) keys.end = keys.begin;
    const auto of_row = own.pairs.begin_row(row);
    for (int first = keys.begin; first < keys.end; first += 32) {
      PairGradient gradient;
      const uint32_t seen = own.meet(of_row, first, keys, state, gradient);
      bias_term += gradient.score;
      if constexpr (kMakesDq) {
        dq.add(seen, gradient.product, params.head_dim, params.adds_k_vectors != 0, lane,
               [&](int n) { return own.key_row(first + n); });
      }
    }
  }
  if constexpr (kMakesDq) {
    dq.template store<config.element>(static_cast<StoredOf<config.element>*>(params.dq) +
                                          params.dq_rows.offset(at.batch, at.q, row, at.head),
                                      params.head_dim, lane);
  }
  bias_term = warp_sum(bias_term);
  if (lane != 0) return;
  const long long place =
      at.head * params.rows_of_head + row_place(params.query, at.q, at.batch, row);
  params.states[place] = state;
  if (params.bias_of_rows != nullptr) params.bias_of_rows[place] = bias_term;
}

}  // namespace sirdar::rows
