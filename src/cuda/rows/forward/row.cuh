// One query row by one warp: 32 keys at a time, a key per lane for the scores, then columns across
// the lanes for the values. README.md has the plan.
#pragma once

#include "cuda/rows/forward/params.h"
#include "cuda/rows/staged.cuh"
#include "cuda/rows/warp.cuh"

namespace sirdar::rows {

// A row of the problem.
struct RowPlace {
  int batch, head, head_kv, row;
  Sequence q, k;

  // Rows of one K/V head are neighbours, and of them those of one position; the last positions,
  // which see most under a causal mask, come first.
  SIRDAR_DEVICE static RowPlace of(const ForwardParams& params, long long index) {
    const int group = params.group_size;
    const long long position = index / group, list = position / params.query.seqlen;
    RowPlace place;
    place.row = static_cast<int>(params.query.seqlen - 1 - position % params.query.seqlen);
    place.head_kv = static_cast<int>(list % params.num_heads_kv);
    place.head = place.head_kv * group + static_cast<int>(index % group);
    place.batch = static_cast<int>(list / params.num_heads_kv);
    place.q = params.query.sequence(place.batch);
    place.k = params.key.sequence(place.batch);
    return place;
  }
  SIRDAR_DEVICE int shift() const { return static_cast<int>(k.length - q.length); }
};

// What is known about a row after some of its keys. The reference is the largest logit so far, the
// sink among them, and is never NaN; `sum` and `out` are relative to it.
template <ForwardConfig config>
struct RowState {
  float reference = kMinusInfinity;
  float sum = 0;                    // this lane's share
  float largest = kMinusInfinity;   // of this lane's logits that are numbers
  bool saw_nan = false;             // among this lane's logits
  float out[lane_columns(config)];  // of this lane's columns, of all keys

  SIRDAR_DEVICE void begin(float sink, bool owns_sink) {
    SIRDAR_UNROLL
    for (int i = 0; i < lane_columns(config); ++i) out[i] = 0;
    if (sink == kMinusInfinity) return;
    reference = ptx::max_of(sink, kMinusInfinity);
    // 1, unless the sink is no finite number.
    if (owns_sink) sum = language::exp(sink - sink);
  }
  // Every lane gives the same.
  SIRDAR_DEVICE void raise_to(float next) {
    if (next == reference) return;
    const float factor = language::exp(reference - next);
    reference = next;
    sum *= factor;
    SIRDAR_UNROLL
    for (int i = 0; i < lane_columns(config); ++i) out[i] *= factor;
  }
};

// The column of V that a lane's i-th one is.
template <ForwardConfig config>
SIRDAR_DEVICE int column_of(int lane, int i) {
  constexpr int kGroup = group_columns(config);
  return i / kGroup * (32 * kGroup) + lane * kGroup + i % kGroup;
}

template <ForwardConfig config, class Modification>
struct RowWalk {
  using Stored = StoredOf<config.element>;

  const ForwardParams& params;
  const Modification& modification;
  const RowPlace& place;
  StagedRow query;
  int lane;
  RowState<config>& state;

  // Every split-th block of 32 keys, from the split's own.
  SIRDAR_DEVICE void run(int split) {
    StructuredMask mask = params.mask;
    mask.length.seqlen_k = place.k.length;
    mask.causal.shift = mask.window.shift = mask.chunk.shift =
        params.is_top_left != 0 ? 0 : place.shift();
    const int begin = static_cast<int>(mask.lo(place.row)),
              end = static_cast<int>(mask.hi(place.row));
    load_query();
    const auto row = begin_row();
    for (int first = begin + 32 * split; first < end; first += 32 * config.splits) {
      take_keys(row, first, end);
    }
  }

 private:
  SIRDAR_DEVICE auto begin_row() const {
    if constexpr (kIsModified<Modification>) {
      return modification.begin_row(place.batch, place.head, place.row, place.row + place.shift());
    } else {
      return Nothing{};
    }
  }
  SIRDAR_DEVICE auto begin_key(int key) const {
    if constexpr (kIsModified<Modification>) {
      return modification.begin_key(place.batch, place.head, key);
    } else {
      return Nothing{};
    }
  }

  SIRDAR_DEVICE void load_query() {
    query.load<config.element>(
        static_cast<const Stored*>(params.q) +
            params.q_rows.offset(place.batch, place.q, place.row, place.head),
        params.head_dim, config.columns, lane);
  }

  // Where a key's row begins, in elements; of a key that the sequence has.
  SIRDAR_DEVICE long long key_offset(const RowMap& map, int key) const {
    const long long head = place.head_kv * map.stride_head;
    if constexpr (config.is_paged) {
      const int size = static_cast<int>(map.page_size);
      const int page =
          map.page_table[place.batch * map.stride_table_batch + key / size * map.stride_table_page];
      return page * map.stride_batch + key % size * map.stride_row + head;
    } else {
      return place.batch * map.stride_batch + (place.k.begin + key) * map.stride_row + head;
    }
  }

  // Whether the pair is visible. `bias` becomes what is added to its score.
  template <class Row, class Key>
  SIRDAR_DEVICE bool is_visible(const Row& row, const Key& of_key, int key, float& bias) const {
    if constexpr (Modification::kMasks) {
      if (!modification.visible(row, of_key)) return false;
    }
    if constexpr (config.bias != Element::none) {
      const PairView& view = params.bias;
      bias = load_number<config.bias>(
          static_cast<const StoredOf<config.bias>*>(view.data) + place.batch * view.stride_batch +
          place.head * view.stride_head + place.row * view.stride_row + key * view.stride_key);
      return bias != kMinusInfinity;
    }
    return true;
  }

  template <class Row, class Key>
  SIRDAR_DEVICE float logit_of(const Row& row, const Key& of_key, int key, float bias) const {
    const Stored* k = static_cast<const Stored*>(params.k) + key_offset(params.k_rows, key);
    float logit =
        params.scale * query.dot<config.element>(k, params.head_dim, params.reads_k_vectors != 0);
    if (params.softcap > 0) logit = params.softcap * language::tanh(logit / params.softcap);
    if constexpr (config.bias != Element::none) logit += bias;
    if (params.alibi != nullptr) {
      const float slope =
          ptx::load_constant(params.alibi + place.batch * params.stride_alibi_batch +
                             place.head * params.stride_alibi_head);
      const int distance = language::absolute(place.row + place.shift() - key);
      logit -= slope * static_cast<float>(distance);
    }
    if constexpr (Modification::kScores) logit = modification.score(row, of_key, logit);
    return logit;
  }

  // The 32 keys from `first` on, of which those below `end` may be visible.
  template <class Row>
  SIRDAR_DEVICE void take_keys(const Row& row, int first, int end) {
    const int key = first + lane;
    const auto of_key = begin_key(key);
    float bias = 0, logit = kMinusInfinity;
    const bool is_seen = key < end && is_visible(row, of_key, key, bias);
    if (is_seen) logit = logit_of(row, of_key, key, bias);
    const uint32_t seen = ptx::ballot_sync(is_seen);
    if (seen == 0) return;
    state.largest = ptx::max_of(state.largest, logit);
    state.saw_nan = state.saw_nan || logit != logit;
    const float top = ptx::max_of(state.reference, warp_max(logit));
    state.raise_to(top);
    // A row whose logits are all -inf so far has no reference; any will do for weights of 0.
    float weight = is_seen ? language::exp(logit - (top == kMinusInfinity ? 0.0f : top)) : 0.0f;
    state.sum += weight;
    if constexpr (config.has_dropout) {
      const bool is_kept = params.dropout.keeps(place.batch, place.head, place.row, key);
      weight *= is_kept ? params.keep_scale : 0.0f;
    }
    add_values(first, seen, weight, is_seen ? key_offset(params.v_rows, key) : 0);
  }

  // Only of keys that are seen: others may lie in memory that holds anything.
  SIRDAR_DEVICE void add_values(int first, uint32_t seen, float weight, long long own_offset) {
    if (seen == ~0u && params.reads_v_vectors != 0) {
      SIRDAR_NO_UNROLL
      for (int begin = 0; begin < 32; begin += 4) {
        SIRDAR_UNROLL
        for (int n = begin; n < begin + 4; ++n) {
          add_row<true>(row_of_value(first, n, own_offset), from_lane(weight, n));
        }
      }
      return;
    }
    SIRDAR_NO_UNROLL
    while (seen != 0) {
      const int n = ptx::lowest_bit(seen);
      seen &= seen - 1;
      const Stored* v = row_of_value(first, n, own_offset);
      const float shared_weight = from_lane(weight, n);
      if (params.reads_v_vectors != 0) {
        add_row<true>(v, shared_weight);
      } else {
        add_row<false>(v, shared_weight);
      }
    }
  }

  SIRDAR_DEVICE const Stored* row_of_value(int first, int n, long long own_offset) const {
    const auto* v = static_cast<const Stored*>(params.v);
    if constexpr (config.is_paged) {
      return v + from_lane(own_offset, n);
    } else {
      return v + key_offset(params.v_rows, first + n);
    }
  }

  template <bool kReadsVectors>
  SIRDAR_DEVICE void add_row(const Stored* v, float weight) {
    constexpr int kGroup = group_columns(config);
    SIRDAR_UNROLL
    for (int i = 0; i < lane_columns(config); i += kGroup) {
      const int column = column_of<config>(lane, i);
      if constexpr (kReadsVectors && kGroup * element_bytes(config.element) >= 4) {
        if (column >= params.head_dim_v) continue;
        const auto packet = Packet<config.element, kGroup>::load(v + column);
        SIRDAR_UNROLL
        for (int n = 0; n < kGroup; ++n) {
          state.out[i + n] = ptx::fma_of(weight, packet.value(n), state.out[i + n]);
        }
      } else {
        SIRDAR_UNROLL
        for (int n = 0; n < kGroup; ++n) {
          if (column + n >= params.head_dim_v) continue;
          state.out[i + n] =
              ptx::fma_of(weight, load_number<config.element>(v + column + n), state.out[i + n]);
        }
      }
    }
  }
};

}  // namespace sirdar::rows
