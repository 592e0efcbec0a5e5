// Gradients that a NaN or an infinity of a hidden pair has reached: 0 times those is NaN, in the
// products of tiles that are seen in part. Whatever is not finite is made again, pair by pair from
// global memory and without the hidden pairs, in fp32. Slow, and as rare as such values. The code
// stands once for all three gradients, for every kernel is compiled with it.
#pragma once

#include "cuda/sm90/backward/exact_pairs.cuh"
#include "cuda/sm90/backward/lost.cuh"

namespace sirdar::sm90 {

// A row of a gradient that a warp makes again.
struct LostLine {
  enum Kind : int { kQuery, kKey, kValue };  // dQ, dK, dV
  Kind kind;
  Walked walked;
  int head;   // of queries; dK, dV: the first of the group
  int index;  // row or key

  SIRDAR_DEVICE bool is_of_query() const { return kind == kQuery; }
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
        const FloatPair two = pairs.two_of(pairs.at(view, !is_query, first + n) + column);
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

// What a thread block looks at: rows of the query tile that it converts, as find_lost() says of a
// warp's, and of key blocks every `step`-th.
struct LostShare {
  QueryTile tile;
  uint32_t rows;
  int first_block, step;
};

template <BackwardConfig config>
SIRDAR_DEVICE int num_key_blocks(const BackwardParams& params) {
  return params.num_walked * params.num_heads_kv * params.num_blocks_n * config.cluster_size;
}

// What kernels ahead may have written since this one began.
template <BackwardConfig config>
SIRDAR_DEVICE uint32_t load_late(const unsigned* word) {
  return config.converts_early ? ptx::load_once(word) : ptx::load_written(word);
}

// A lane's word of a key block.
template <BackwardConfig config>
SIRDAR_DEVICE uint32_t lost_word(const BackwardParams& params, int block, int lane) {
  return load_late<config>(params.lost + kLostWords * static_cast<long long>(block) +
                           lane % kLostWords);
}

// The lines that a warp makes again, one after the other: of the query tile that its block
// converts, then of key blocks. Of those word n of eight is of keys 16 n and on, of the first 64
// twice where a block has no more; warp n % 4 looks at it.
template <BackwardConfig config>
struct LostLines {
  const BackwardParams& params;
  const LostShare& share;
  int warp, lane;
  uint32_t rows;          // left of the tile
  int block;              // of keys
  uint32_t words = 0;     // a lane's of the block's
  int word = kLostWords;  // the next one
  uint32_t keys = 0;      // left of the one before
  bool has_key = false;   // its dV is next

  SIRDAR_DEVICE LostLines(const BackwardParams& all, const LostShare& own, int own_warp,
                          int own_lane)
      : params(all),
        share(own),
        warp(own_warp),
        lane(own_lane),
        rows(own.rows),
        block(own.first_block - own.step) {}

  SIRDAR_DEVICE bool next(LostLine& line) {
    if (rows != 0) {
      line.kind = LostLine::kQuery;
      line.walked = share.tile.walked;
      line.head = share.tile.head;
      line.index = share.tile.tile * config.block_m + 16 * warp + lost_row(ptx::lowest_bit(rows));
      rows &= rows - 1;
      return true;
    }
    if (has_key) {
      line.kind = LostLine::kValue;
      has_key = false;
      return true;
    }
    const int of_head = params.num_blocks_n * config.cluster_size;
    const int num_blocks = num_key_blocks<config>(params);
    SIRDAR_NO_UNROLL
    while (keys == 0) {
      if (word < kLostWords) {
        keys = ptx::shfl(words, word);
        word += 4;
        continue;
      }
      block += share.step;
      if (block >= num_blocks) return false;
      words = lost_word<config>(params, block, lane);
      if (ptx::any_sync(words != 0)) word = warp;
    }
    const int head = block / of_head, first_key = (block - head * of_head) * block_keys(config);
    line.kind = LostLine::kKey;
    const int number = head / params.num_heads_kv;
    line.walked = walked_of<config>(params, number);
    line.head = (head - number * params.num_heads_kv) * params.group_size;
    line.index = first_key + 16 * (word - 4) % block_keys(config) + lost_row(ptx::lowest_bit(keys));
    keys &= keys - 1;
    has_key = true;
    return true;
  }
};

// Whether a warp has anything to make again: almost never.
template <BackwardConfig config>
SIRDAR_DEVICE bool has_lost(const BackwardParams& params, const LostShare& share, int lane) {
  const int num_blocks = num_key_blocks<config>(params);
  uint32_t words = share.rows;
  SIRDAR_NO_UNROLL
  for (int block = share.first_block; block < num_blocks; block += share.step) {
    words |= lost_word<config>(params, block, lane);
  }
  return ptx::any_sync(words != 0);
}

template <BackwardConfig config, class Modification>
SIRDAR_DEVICE_APART void restore(const BackwardParams& params, const Modification& modification,
                                 const LostShare& share, int warp, int lane) {
  ptx::syncwarp();  // lanes write what others wrote
  LostLines<config> lines(params, share, warp, lane);
  LostLine line;
  SIRDAR_NO_UNROLL
  while (lines.next(line)) {
    const int batch = line.walked.batch;
    const Sequence sequence = sequence_of<config>(params, line.walked);
    // Of what lies behind the end nobody wrote a word, or it is nobody's.
    int stored = line.is_of_query() ? sequence.q.length : sequence.k.length;
    if constexpr (config.has_lengths) {
      stored = line.is_of_query() ? rows_there<true>(params.cu_seqlens_q, params.seqlen_q, batch)
                                  : rows_there<true>(params.cu_seqlens_k, params.seqlen_k, batch);
    }
    if (line.index >= stored) continue;
    LineRestorer<config, Modification>{
        params, line, {params, modification, sequence, batch, line.head}, lane}
        .run();
  }
}

}  // namespace sirdar::sm90
