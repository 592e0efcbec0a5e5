// Gradients that a NaN or an infinity of a hidden pair has reached: 0 times those is NaN, in the
// products of tiles that are seen in part. Whatever is not finite is made again, pair by pair from
// global memory and without the hidden pairs, in fp32. Slow, and as rare as such values. The code
// stands once for all three gradients, for every kernel is compiled with it.
#pragma once

#include "cuda/sm90/backward/lost.cuh"
#include "cuda/sm90/backward/modify.cuh"
#include "cuda/sm90/backward/peaks.cuh"
#include "cuda/sm90/backward/work.cuh"

namespace sirdar::sm90 {

// A row of a gradient that a warp makes again.
struct LostLine {
  enum Kind : int { kQuery, kKey, kValue };  // dQ, dK, dV
  Kind kind;
  int batch, head;  // of queries; dK, dV: the first of the group
  int index;        // row or key

  SIRDAR_DEVICE bool is_of_query() const { return kind == kQuery; }
};

// A pair as the gradients need it.
struct ExactPair {
  bool is_seen;
  float weight, product;  // P, and dS times the slopes of the logit
};

// Pairs of a query head and its K/V head.
template <BackwardConfig config, class Modification>
struct ExactPairs {
  const BackwardParams& params;
  const Modification& modification;
  Sequence sequence;
  int batch, head;

  // Of row `row` of a sequence, as it lies in a ragged or a dense tensor.
  SIRDAR_DEVICE long long offset(const RowView& view, bool is_query, int row) const {
    const bool is_ragged = (is_query ? params.cu_seqlens_q : params.cu_seqlens_k).data != nullptr;
    const int of_head = is_query ? head : head / params.group_size;
    const int begin = is_query ? sequence.q.begin : sequence.k.begin;
    return (is_ragged ? 0 : batch) * view.stride_batch + of_head * view.stride_head +
           (begin + row) * view.stride_row;
  }
  SIRDAR_DEVICE const uint16_t* at(const RowView& view, bool is_query, int row) const {
    return static_cast<const uint16_t*>(view.data) + offset(view, is_query, row);
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

  // Whether structured masks and lengths show it.
  SIRDAR_DEVICE bool is_within(int row, int key) const {
    if (row >= sequence.q.length || key >= sequence.k.length) return false;
    const BackwardBounds<config> bounds = bounds_of<config>(params, sequence);
    return key >= bounds.lo(row) && key < bounds.hi(row);
  }

  SIRDAR_DEVICE ExactPair pair(int row, int key) const {
    ExactPair pair{false, 0, 0};
    if (!is_within(row, key)) return pair;
    const float lse = static_cast<const float*>(params.lse.data)[offset(params.lse, true, row)];
    if (lse == kMinusInfinity) return pair;
    const auto of_row = begin_row(row);
    const auto of_key = begin_key(key);
    float bias = 0;
    if (!is_shown(of_row, of_key, row, key, bias)) return pair;
    pair.is_seen = true;
    const long long index = tile_index(params, sequence, head, 0) * config.block_m + row;
    const float score =
        dot<config.head_dim>(at(params.q_rows, true, row), at(params.k_rows, false, key));
    const float dp =
        params.start_delta[index] +
        dot<config.head_dim_v>(at(params.dout_rows, true, row), at(params.v_rows, false, key));
    if constexpr (!is_modified(config)) {
      pair.weight = ptx::exp2_approx((params.start_lse[index] + score) * params.scale_log2);
      pair.product = pair.weight * dp;
    } else {
      modify(of_row, of_key, row, key, bias, score, lse, dp, pair);
    }
    return pair;
  }

 private:
  static constexpr bool kHasExpression = config.has_score_mod || config.has_mask_mod;

  SIRDAR_DEVICE auto begin_row(int row) const {
    if constexpr (kHasExpression) {
      return modification.begin_row(batch, head, row, row + sequence.k.length - sequence.q.length);
    } else {
      return Nothing{};
    }
  }
  SIRDAR_DEVICE auto begin_key(int key) const {
    if constexpr (kHasExpression) {
      return modification.begin_key(batch, head, key);
    } else {
      return Nothing{};
    }
  }

  // Whether masks that read data show it too. `bias` becomes what is added to its score.
  template <class Row, class Key>
  SIRDAR_DEVICE bool is_shown(const Row& of_row, const Key& of_key, int row, int key,
                              float& bias) const {
    if constexpr (config.has_mask_mod) {
      if (!modification.visible(of_row, of_key)) return false;
    }
    if constexpr (config.bias != Bias::none) {
      const TilePlace at{batch, head, row, key, sequence.q.length, sequence.k.length};
      bias = TileBias<config>::Element::value(
          ptx::load_constant(TileBias<config>::address(params, at, 0, 0)));
      return bias != kMinusInfinity;
    }
    return true;
  }

  // What the row-by-row backward computes (cuda/rows/backward/pairs.cuh): a dS of 0 stays 0, and
  // what a logit does not depend on gets nothing of a NaN.
  template <class Row, class Key>
  SIRDAR_DEVICE void modify(const Row& of_row, const Key& of_key, int row, int key, float bias,
                            float dot, float lse, float dp, ExactPair& pair) const {
    float logit = params.scale * dot, cap_slope = 1;
    if constexpr (config.has_softcap) {
      const float x = dot * params.softcap_factor;
      const float e = language::exp(-2.0f * ptx::absolute(x)), inverse = 1.0f / (1.0f + e);
      const float far = ptx::fma_of(-2.0f * e, inverse, 1.0f);
      logit = params.softcap * (ptx::absolute(x) < 0.65f ? language::tanh(x) : x < 0 ? -far : far);
      cap_slope = 4.0f * e * inverse * inverse;
    }
    logit += bias;
    if constexpr (config.has_alibi) {
      const int distance = row + sequence.k.length - sequence.q.length - key;
      logit -= ptx::load_constant(params.alibi + batch * params.stride_alibi_batch +
                                  head * params.stride_alibi_head) *
               ptx::absolute(static_cast<float>(distance));
    }
    float slope = 1;
    if constexpr (config.has_score_mod) {
      slope = modification.slope(of_row, of_key, logit);
      logit = modification.score(of_row, of_key, logit);
    }
    pair.weight = ptx::exp2_approx((logit - lse) * kLog2e);
    pair.product = pair.weight * dp;
    if constexpr (config.has_score_mod) {
      pair.product = language::through_slope(pair.product, slope);
    }
    if constexpr (config.has_softcap) {
      if (pair.product != 0.0f) pair.product *= cap_slope;
    }
  }
};

// Two columns of a gradient, of a warp's lanes.
struct TwoColumns {
  float first = 0, second = 0;
};

template <BackwardConfig config, class Modification>
struct LineRestorer {
  const BackwardParams& params;
  const LostLine& line;
  ExactPairs<config, Modification> pairs;
  int lane;

  // What the factors of its pairs are multiplied with.
  SIRDAR_DEVICE RowView others() const {
    return line.is_of_query()            ? params.k_rows
           : line.kind == LostLine::kKey ? params.q_rows
                                         : params.dout_rows;
  }

  // Adds what the pairs with the head's queries, or with the keys, make of two columns. Lanes make
  // 32 pairs and then add them up; nothing changes any more where all sums are NaN.
  SIRDAR_DEVICE void add_pairs(TwoColumns& sum, int column, bool has_columns) const {
    const BackwardBounds<config> bounds = bounds_of<config>(params, pairs.sequence);
    const bool is_query = line.is_of_query();
    const int begin = is_query ? bounds.lo(line.index) : bounds.row_begin(line.index);
    const int end = is_query ? bounds.hi(line.index) : bounds.row_end(line.index);
    const RowView view = others();
    SIRDAR_NO_UNROLL
    for (int first = begin; first < end; first += 32) {
      const int other = first + lane;
      const ExactPair pair =
          pairs.pair(is_query ? line.index : other, is_query ? other : line.index);
      const float own = line.kind == LostLine::kValue ? pair.weight : pair.product;
      SIRDAR_NO_UNROLL
      for (uint32_t left = ptx::ballot_sync(pair.is_seen); left != 0; left &= left - 1) {
        const int n = ptx::lowest_bit(left);
        const float factor = ptx::float_of(ptx::shfl(ptx::bits_of(own), n));
        if (!has_columns) continue;
        const uint16_t* const from = pairs.at(view, !is_query, first + n) + column;
        const FloatPair two =
            unpack<config.element>(ptx::load_constant(reinterpret_cast<const uint32_t*>(from)));
        sum.first = ptx::fma_of(factor, two.low, sum.first);
        sum.second = ptx::fma_of(factor, two.high, sum.second);
      }
      const bool is_number = sum.first == sum.first || sum.second == sum.second;
      if (!ptx::any_sync(has_columns && is_number)) return;
    }
  }

  // By a warp; dK and dV over all heads of a group.
  SIRDAR_DEVICE void run() {
    const bool is_query = line.is_of_query(), is_value = line.kind == LostLine::kValue;
    const int num_columns = is_value ? config.head_dim_v : config.head_dim;
    const int num_heads = is_query ? 1 : params.group_size;
    const RowView to = is_query ? params.dq_rows : is_value ? params.dv_rows : params.dk_rows;
    const float factor = is_value ? 1.0f : params.scale;
    SIRDAR_NO_UNROLL
    for (int column = 2 * lane; column < columns(num_columns); column += 64) {
      TwoColumns sum;
      const bool has_columns = column < num_columns;
      SIRDAR_NO_UNROLL
      for (int n = 0; n < num_heads; ++n) {
        pairs.head = line.head + n;
        add_pairs(sum, column, has_columns);
      }
      if (!has_columns) continue;
      auto* const row = const_cast<uint16_t*>(pairs.at(to, is_query, line.index));
      *reinterpret_cast<uint32_t*>(row + column) =
          pack<config.element>(sum.first * factor, sum.second * factor);
    }
  }
};

// The lines that a warp makes again, one after the other: of the query tile that its block
// converts, then of key blocks. Of those word n of eight is of keys 16 n and on, of the first 64
// twice where a block has no more; warp n % 4 looks at it.
template <BackwardConfig config>
struct LostLines {
  const BackwardParams& params;
  int warp, lane;
  uint32_t rows;          // left of the tile, as find_lost() says
  int block;              // of keys
  uint32_t words = 0;     // a lane's of the block's
  int word = kLostWords;  // the next one
  uint32_t keys = 0;      // left of the one before
  bool has_key = false;   // its dV is next

  SIRDAR_DEVICE LostLines(const BackwardParams& all, uint32_t lost, int own_warp, int own_lane)
      : params(all),
        warp(own_warp),
        lane(own_lane),
        rows(lost),
        block(ptx::block_idx_x() - ptx::grid_dim_x()) {}

  SIRDAR_DEVICE bool next(LostLine& line) {
    if (rows != 0) {
      const int batch_head = ptx::block_idx_x() / params.num_tiles;
      const int tile = ptx::block_idx_x() - batch_head * params.num_tiles;
      line.kind = LostLine::kQuery;
      line.batch = batch_head / params.num_heads;
      line.head = batch_head - line.batch * params.num_heads;
      line.index = tile * config.block_m + 16 * warp + lost_row(ptx::lowest_bit(rows));
      rows &= rows - 1;
      return true;
    }
    if (has_key) {
      line.kind = LostLine::kValue;
      has_key = false;
      return true;
    }
    const int of_head = params.num_blocks_n * config.cluster_size;
    const int num_blocks = params.batch * params.num_heads_kv * of_head;
    SIRDAR_NO_UNROLL
    while (keys == 0) {
      if (word < kLostWords) {
        keys = ptx::shfl(words, word);
        word += 4;
        continue;
      }
      block += ptx::grid_dim_x();
      if (block >= num_blocks) return false;
      words = ptx::load_constant(params.lost + kLostWords * static_cast<long long>(block) +
                                 lane % kLostWords);
      if (ptx::any_sync(words != 0)) word = warp;
    }
    const int head = block / of_head, first_key = (block - head * of_head) * block_keys(config);
    line.kind = LostLine::kKey;
    line.batch = head / params.num_heads_kv;
    line.head = (head - line.batch * params.num_heads_kv) * params.group_size;
    line.index = first_key + 16 * (word - 4) % block_keys(config) + lost_row(ptx::lowest_bit(keys));
    keys &= keys - 1;
    has_key = true;
    return true;
  }
};

// Whether a warp has anything to make again: almost never.
template <BackwardConfig config>
SIRDAR_DEVICE bool has_lost(const BackwardParams& params, uint32_t lost, int lane) {
  const int num_blocks =
      params.batch * params.num_heads_kv * params.num_blocks_n * config.cluster_size;
  uint32_t words = lost;
  SIRDAR_NO_UNROLL
  for (int block = ptx::block_idx_x(); block < num_blocks; block += ptx::grid_dim_x()) {
    words |= ptx::load_constant(params.lost + kLostWords * static_cast<long long>(block) +
                                lane % kLostWords);
  }
  return ptx::any_sync(words != 0);
}

// `lost`: rows of the query tile that the block converts, of a warp.
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE_APART void restore(const BackwardParams& params, const Modification& modification,
                                 uint32_t lost, int warp, int lane) {
  ptx::syncwarp();  // lanes write what others wrote
  LostLines<config> lines(params, lost, warp, lane);
  LostLine line;
  SIRDAR_NO_UNROLL
  while (lines.next(line)) {
    const Sequence sequence = sequence_of<config>(params, line.batch);
    // Of what lies behind the end nobody wrote a word, or it is nobody's.
    const int stored =
        line.is_of_query()
            ? rows_there<config.has_lengths>(params.cu_seqlens_q, params.seqlen_q, line.batch)
            : rows_there<config.has_lengths>(params.cu_seqlens_k, params.seqlen_k, line.batch);
    if (line.index >= stored) continue;
    LineRestorer<config, Modification>{
        params, line, {params, modification, sequence, line.batch, line.head}, lane}
        .run();
  }
}

}  // namespace sirdar::sm90
