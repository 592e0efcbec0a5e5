// Gradients that a NaN or an infinity of a hidden pair has reached: 0 times those is NaN, in the
// products of tiles that are seen in part. Whatever is not finite is made again, pair by pair from
// global memory and without the hidden pairs, in fp32. Slow, and as rare as such values.
#pragma once

#include "cuda/sm90/backward/lost.cuh"
#include "cuda/sm90/backward/peaks.cuh"
#include "cuda/sm90/backward/work.cuh"

namespace sirdar::sm90 {

// A pair as both of its gradients need it.
struct ExactPair {
  bool is_seen;
  float weight, product;  // P, dS
};

// Pairs of a query head and its K/V head.
template <BackwardConfig config>
struct ExactPairs {
  const BackwardParams& params;
  const Sequence& sequence;
  int batch, head;

  // Of row `row` of a sequence that begins at `begin` in ragged tensors.
  SIRDAR_DEVICE static const uint16_t* at(const RowView& view, int batch, int head, int row) {
    return static_cast<const uint16_t*>(view.data) + batch * view.stride_batch +
           head * view.stride_head + row * view.stride_row;
  }
  SIRDAR_DEVICE int batch_q() const { return params.cu_seqlens_q.data != nullptr ? 0 : batch; }
  SIRDAR_DEVICE int batch_k() const { return params.cu_seqlens_k.data != nullptr ? 0 : batch; }
  SIRDAR_DEVICE const uint16_t* of_query(const RowView& view, int row) const {
    return at(view, batch_q(), head, sequence.q.begin + row);
  }
  SIRDAR_DEVICE const uint16_t* of_key(const RowView& view, int key) const {
    return at(view, batch_k(), head / params.group_size, sequence.k.begin + key);
  }

  template <int kColumns>
  SIRDAR_DEVICE static float dot(const uint16_t* a, const uint16_t* b) {
    float sum = 0;
    SIRDAR_NO_UNROLL
    for (int c = 0; c < kColumns; c += 8) {
      sum += dot_of_eight<config.element>(ptx::load_constant_int4(a + c),
                                          ptx::load_constant_int4(b + c));
    }
    return sum;
  }

  SIRDAR_DEVICE ExactPair pair(int row, int key) const {
    ExactPair pair{false, 0, 0};
    const BackwardBounds<config> bounds = bounds_of<config>(params, sequence);
    if (row >= sequence.q.length || key >= sequence.k.length) return pair;
    if (key < bounds.lo(row) || key >= bounds.hi(row)) return pair;
    const RowView& lse = params.lse;
    if (static_cast<const float*>(lse.data)[batch_q() * lse.stride_batch + head * lse.stride_head +
                                            (sequence.q.begin + row) * lse.stride_row] ==
        kMinusInfinity) {
      return pair;
    }
    pair.is_seen = true;
    const long long index = tile_index(params, sequence, head, 0) * config.block_m + row;
    const float score = params.start_lse[index] + dot<config.head_dim>(of_query(params.q_rows, row),
                                                                       of_key(params.k_rows, key));
    const float dp =
        params.start_delta[index] +
        dot<config.head_dim_v>(of_query(params.dout_rows, row), of_key(params.v_rows, key));
    pair.weight = ptx::exp2_approx(score * params.scale_log2);
    pair.product = pair.weight * dp;
    return pair;
  }
};

// Two columns of a gradient, of a warp's lanes.
struct TwoColumns {
  float first = 0, second = 0;
};

// Adds factor(n) times row_at(n), from `begin` on, of every n whose pair is seen. Lanes make 32
// pairs and then add them up; nothing changes any more where all sums are NaN.
template <Element kElement, class Pair, class RowAt>
SIRDAR_DEVICE void add_pairs(TwoColumns& sum, int begin, int end, int lane, bool has_columns,
                             Pair pair_at, RowAt row_at) {
  SIRDAR_NO_UNROLL
  for (int first = begin; first < end; first += 32) {
    bool is_seen = false;
    const float own = pair_at(first + lane, is_seen);
    SIRDAR_NO_UNROLL
    for (uint32_t left = ptx::ballot_sync(is_seen); left != 0; left &= left - 1) {
      const int n = ptx::lowest_bit(left);
      const float factor = ptx::float_of(ptx::shfl(ptx::bits_of(own), n));
      if (!has_columns) continue;
      const FloatPair two = unpack<kElement>(
          ptx::load_constant(reinterpret_cast<const uint32_t*>(row_at(first + n))));
      sum.first = ptx::fma_of(factor, two.low, sum.first);
      sum.second = ptx::fma_of(factor, two.high, sum.second);
    }
    const bool is_number = sum.first == sum.first || sum.second == sum.second;
    if (!ptx::any_sync(has_columns && is_number)) return;
  }
}

template <Element kElement>
SIRDAR_DEVICE void write_two(uint16_t* row, int column, const TwoColumns& sum, float factor) {
  *reinterpret_cast<uint32_t*>(row + column) =
      pack<kElement>(sum.first * factor, sum.second * factor);
}

// dQ of a row, by a warp.
template <BackwardConfig config>
SIRDAR_DEVICE void restore_query(const ExactPairs<config>& pairs, int row, int lane) {
  const BackwardBounds<config> bounds = bounds_of<config>(pairs.params, pairs.sequence);
  SIRDAR_NO_UNROLL
  for (int column = 2 * lane; column < columns(config.head_dim); column += 64) {
    TwoColumns sum;
    const bool has_columns = column < config.head_dim;
    add_pairs<config.element>(
        sum, bounds.lo(row), bounds.hi(row), lane, has_columns,
        [&](int key, bool& is_seen) {
          const ExactPair pair = pairs.pair(row, key);
          is_seen = pair.is_seen;
          return pair.product;
        },
        [&](int key) { return pairs.of_key(pairs.params.k_rows, key) + column; });
    if (has_columns) {
      uint16_t* const to = const_cast<uint16_t*>(pairs.of_query(pairs.params.dq_rows, row));
      write_two<config.element>(to, column, sum, pairs.params.scale);
    }
  }
}

// Of the query tile that the block converts, those of a warp.
template <BackwardConfig config>
SIRDAR_DEVICE void restore_queries(const BackwardParams& params, uint32_t lost, int warp,
                                   int lane) {
  ptx::syncwarp();  // lanes write what others wrote
  const int batch_head = ptx::block_idx_x() / params.num_tiles;
  const int tile = ptx::block_idx_x() - batch_head * params.num_tiles;
  const int batch = batch_head / params.num_heads;
  const Sequence sequence = sequence_of<config>(params, batch);
  const ExactPairs<config> pairs{params, sequence, batch, batch_head - batch * params.num_heads};
  const int stored = rows_there<config.has_lengths>(params.cu_seqlens_q, params.seqlen_q, batch);
  SIRDAR_NO_UNROLL
  for (; lost != 0; lost &= lost - 1) {
    const int bit = ptx::lowest_bit(lost);
    const int row = tile * config.block_m + 16 * warp + lost_row(bit);
    if (row < stored) restore_query(pairs, row, lane);
  }
}

// dK (dV) of a key, by a warp, over all heads of its group.
template <BackwardConfig config, bool kIsValue>
SIRDAR_DEVICE void restore_key(ExactPairs<config> pairs, int key, int lane) {
  constexpr int kColumns = kIsValue ? config.head_dim_v : config.head_dim;
  const BackwardParams& params = pairs.params;
  const BackwardBounds<config> bounds = bounds_of<config>(params, pairs.sequence);
  const int first_head = pairs.head;
  SIRDAR_NO_UNROLL
  for (int column = 2 * lane; column < columns(kColumns); column += 64) {
    TwoColumns sum;
    const bool has_columns = column < kColumns;
    SIRDAR_NO_UNROLL
    for (int n = 0; n < params.group_size; ++n) {
      pairs.head = first_head + n;
      add_pairs<config.element>(
          sum, bounds.row_begin(key), bounds.row_end(key), lane, has_columns,
          [&](int row, bool& is_seen) {
            const ExactPair pair = pairs.pair(row, key);
            is_seen = pair.is_seen;
            return kIsValue ? pair.weight : pair.product;
          },
          [&](int row) {
            return pairs.of_query(kIsValue ? params.dout_rows : params.q_rows, row) + column;
          });
    }
    if (has_columns) {
      const RowView& to = kIsValue ? params.dv_rows : params.dk_rows;
      write_two<config.element>(const_cast<uint16_t*>(pairs.of_key(to, key)), column, sum,
                                kIsValue ? 1.0f : params.scale);
    }
  }
}

// What the key blocks found. Word n of eight is of keys 16 n and on, of the first 64 twice where a
// block has no more; warp n % 4 looks at it.
template <BackwardConfig config>
SIRDAR_DEVICE void restore_keys(const BackwardParams& params, int warp, int lane) {
  const int of_head = params.num_blocks_n * config.cluster_size;
  const int num_blocks = params.batch * params.num_heads_kv * of_head;
  SIRDAR_NO_UNROLL
  for (int index = ptx::block_idx_x(); index < num_blocks; index += ptx::grid_dim_x()) {
    const unsigned* const words = params.lost + kLostWords * static_cast<long long>(index);
    const uint32_t word = ptx::load_constant(words + lane % kLostWords);
    if (!ptx::any_sync(word != 0)) continue;
    const int head = index / of_head;
    const int first_key = (index - head * of_head) * block_keys(config);
    const int batch = head / params.num_heads_kv;
    const Sequence sequence = sequence_of<config>(params, batch);
    const ExactPairs<config> pairs{params, sequence, batch,
                                   (head - batch * params.num_heads_kv) * params.group_size};
    const int stored = rows_there<config.has_lengths>(params.cu_seqlens_k, params.seqlen_k, batch);
    SIRDAR_NO_UNROLL
    for (int n = warp; n < kLostWords; n += 4) {
      SIRDAR_NO_UNROLL
      for (uint32_t left = ptx::shfl(word, n); left != 0; left &= left - 1) {
        const int key = first_key + 16 * n % block_keys(config) + lost_row(ptx::lowest_bit(left));
        if (key >= stored) continue;  // nobody wrote these words
        restore_key<config, false>(pairs, key, lane);
        restore_key<config, true>(pairs, key, lane);
      }
    }
  }
}

}  // namespace sirdar::sm90
