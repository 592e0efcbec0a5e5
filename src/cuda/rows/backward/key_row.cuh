// A key and its value by one warp: dk and dv. 32 queries at a time, a query per lane for what is
// computed of pairs, then columns across the lanes; the heads of the group one after the other.
#pragma once

#include "cuda/rows/backward/pairs.cuh"
#include "cuda/rows/backward/row_sum.cuh"

namespace sirdar::rows {

SIRDAR_DEVICE QueryState load_state(const QueryState* address) {
  const ptx::Int4 words = ptx::load_constant_int4(address);
  return {
      ptx::float_of(static_cast<uint32_t>(words.x)), ptx::float_of(static_cast<uint32_t>(words.y)),
      ptx::float_of(static_cast<uint32_t>(words.z)), ptx::float_of(static_cast<uint32_t>(words.w))};
}

// kMakesGradients: dk and dv, besides what the key adds to dbias.
template <BackwardConfig config, bool kMakesGradients, class Modification>
struct KeyRow {
  using Stored = StoredOf<config.element>;
  using StoredOut = StoredOf<config.element_out>;

  const BackwardParams& params;
  const Modification& modification;
  int key, lane;
  StagedRow own, value;
  RowSum<config.element, config.columns> dk;
  RowSum<config.element_out, config.columns_v> dv;

  SIRDAR_DEVICE void stage(const Head& at) const {
    ptx::syncwarp();  // the next row takes the place of the one before
    own.template load<config.element>(static_cast<const Stored*>(params.k) +
                                          params.k_rows.offset(at.batch, at.k, key, at.head_kv),
                                      params.head_dim, config.columns, lane);
    value.template load<config.element>(static_cast<const Stored*>(params.v) +
                                            params.v_rows.offset(at.batch, at.k, key, at.head_kv),
                                        params.head_dim_v, config.columns_v, lane);
  }

  // All queries of a head. Returns what the key adds to dbias.
  SIRDAR_DEVICE float meet(const Head& at) {
    const Pairs<config, Modification> pairs{params, modification, at};
    const Range rows = query_range(pairs.mask(), key, at.q.length);
    const auto of_key = pairs.begin_key(key);
    const QueryState* states =
        params.states + at.head * params.rows_of_head + row_place(params.query, at.q, at.batch, 0);
    const int end = static_cast<int>(rows.end);
    float bias_term = 0;
    for (int first = static_cast<int>(rows.begin); first < end; first += 32) {
      const int row = first + lane;
      const auto of_row = pairs.begin_row(row);
      QueryState state{language::kInfinity, 0, 0, 0};
      if (row < end) state = load_state(states + row);
      float bias = 0;
      PairGradient gradient{0, 0, 0, 0};
      const bool is_seen = takes_part(state) && pairs.is_visible(of_row, of_key, row, key, bias);
      if (is_seen) {
        const float product = own.template dot<config.element>(query_row(at, row), params.head_dim,
                                                               params.reads_q_vectors != 0);
        const float dout_v = value.template dot<config.element_out>(
            dout_row(at, row), params.head_dim_v, params.reads_dout_vectors != 0);
        const Logit logit = pairs.logit(of_row, of_key, row, key, bias, product);
        gradient = pairs.gradient(of_row, of_key, row, key, logit, dout_v, state);
      }
      bias_term += gradient.score;
      const uint32_t seen = ptx::ballot_sync(is_seen);
      if constexpr (kMakesGradients) {
        dv.add(seen, gradient.weight, params.head_dim_v, params.adds_dout_vectors != 0, lane,
               [&](int n) { return dout_row(at, first + n); });
        dk.add(seen, gradient.product, params.head_dim, params.adds_q_vectors != 0, lane,
               [&](int n) { return query_row(at, first + n); });
      }
    }
    return warp_sum(bias_term);
  }

  SIRDAR_DEVICE void store(const Head& at) const {
    dk.template store<config.element>(
        static_cast<Stored*>(params.dk) + params.dk_rows.offset(at.batch, at.k, key, at.head_kv),
        params.head_dim, lane);
    dv.template store<config.element>(
        static_cast<Stored*>(params.dv) + params.dv_rows.offset(at.batch, at.k, key, at.head_kv),
        params.head_dim_v, lane);
  }

 private:
  SIRDAR_DEVICE const Stored* query_row(const Head& at, int row) const {
    return static_cast<const Stored*>(params.q) +
           params.q_rows.offset(at.batch, at.q, row, at.head);
  }
  SIRDAR_DEVICE const StoredOut* dout_row(const Head& at, int row) const {
    return static_cast<const StoredOut*>(params.dout) +
           params.dout_rows.offset(at.batch, at.q, row, at.head);
  }
};

// One key of the call: keys of a K/V head are neighbours, the first ones, which most rows see under
// a causal mask, first.
template <BackwardConfig config, bool kMakesGradients, class Modification>
SIRDAR_DEVICE void compute_key_row(const BackwardParams& params, const Modification& modification,
                                   long long index, uint32_t shared) {
  const int lane = ptx::thread_idx_x() % 32;
  const int key = static_cast<int>(index % params.key.seqlen);
  const long long list = index / params.key.seqlen;
  const int head = static_cast<int>(list % params.num_heads_kv) * params.group_size;
  Head at = Head::of(params, static_cast<int>(list / params.num_heads_kv), head);
  if (key >= at.k.stored) return;
  KeyRow<config, kMakesGradients, Modification> own{
      params,   modification,
      key,      lane,
      {shared}, {shared + 4 * static_cast<uint32_t>(config.columns)},
      {},       {}};
  own.dk.clear();
  own.dv.clear();
  if (key < at.k.length) {
    if (at.q.length > 0) own.stage(at);
    const long long place = row_place(params.key, at.k, at.batch, key);
    for (int n = 0; n < params.group_size; ++n) {
      at.head = head + n;
      const float bias_term = own.meet(at);
      if (params.bias_of_keys == nullptr || lane != 0) continue;
      params.bias_of_keys[at.head * params.keys_of_head + place] = bias_term;
    }
  }
  if constexpr (kMakesGradients) own.store(at);
}

}  // namespace sirdar::rows
