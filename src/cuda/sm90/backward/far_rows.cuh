// Gradients of rows whose lse is far from 0 (level.cuh), and what they give those of keys. In the
// products their weights are 0, so that sums of the others keep their digits; here their pairs are
// made one by one. dQ of such a row is all of these; to dK and dV they are added, in the order of
// rows. A key whose gradient is made again has them in it.
#pragma once

#include "cuda/sm90/backward/level.cuh"
#include "cuda/sm90/backward/restore.cuh"

namespace sirdar::sm90 {

// Of a tile's rows that a warp converts those that are far from 0, as find_lost() says it.
template <BackwardConfig config>
SIRDAR_DEVICE uint32_t find_far(const BackwardParams& params, const QueryTile& place, int warp) {
  const Sequence sequence = sequence_of<config>(params, place.walked);
  if (place.tile >= sequence.num_tiles) return 0;
  const unsigned* const words =
      params.far_rows +
      tile_index(params, sequence, place.head, place.tile) * (config.block_m / kFarRows) + warp / 2;
  uint32_t found = 0;
  SIRDAR_NO_UNROLL
  for (int i = 0; i < config.block_m / 64; ++i) {
    uint32_t rows = load_late<config>(words + 2 * i) >> (16 * (warp % 2)) & 0xffffu;
    SIRDAR_NO_UNROLL
    for (; rows != 0; rows &= rows - 1) {
      found |= 1u << (2 * i + lost_bit(ptx::lowest_bit(rows)));
    }
  }
  return found;
}

// A row's dQ, by a warp. Lanes make 32 pairs and then add them up, several at a time, so that the
// rows of K come at one time.
template <BackwardConfig config, class Modification>
struct FarQuery {
  static constexpr int kSets = columns(config.head_dim) / 64, kAhead = kSets > 2 ? 2 : 4;

  FarPairs<config, Modification> pairs;
  int row, lane;
  TwoColumns dq[kSets];

  SIRDAR_DEVICE void add_some(uint32_t& seen, int first_key, float product) {
    float factors[kAhead];
    FloatPair keys[kAhead][kSets];
    SIRDAR_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      // Of the last one again, and nothing of it.
      const bool is_there = seen != 0;
      const int n = is_there ? ptx::lowest_bit(seen) : 0;
      seen &= seen - 1;
      const float factor = ptx::float_of(ptx::shfl(ptx::bits_of(product), n));
      factors[i] = is_there ? factor : 0.0f;
      const uint16_t* const key = pairs.at(pairs.params.k_rows, false, first_key + n);
      SIRDAR_UNROLL
      for (int set = 0; set < kSets; ++set) {
        const int column = 64 * set + 2 * lane;
        keys[i][set] = {0, 0};
        if (is_there && column < config.head_dim) keys[i][set] = pairs.two_of(key + column);
      }
    }
    SIRDAR_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      SIRDAR_UNROLL
      for (int set = 0; set < kSets; ++set) {
        dq[set].first = ptx::fma_of(factors[i], keys[i][set].low, dq[set].first);
        dq[set].second = ptx::fma_of(factors[i], keys[i][set].high, dq[set].second);
      }
    }
  }

  SIRDAR_DEVICE void run() {
    const BackwardParams& params = pairs.params;
    const BackwardBounds<config> bounds = bounds_of<config>(params, pairs.sequence);
    const int end = bounds.hi(row);
    SIRDAR_NO_UNROLL
    for (int first = bounds.lo(row); first < end; first += 32) {
      const ExactPair pair = pairs.pair(row, first + lane);
      uint32_t seen = ptx::ballot_sync(pair.is_seen);
      SIRDAR_NO_UNROLL
      while (seen != 0) add_some(seen, first, pair.product);
    }
    auto* const to = const_cast<uint16_t*>(pairs.at(params.dq_rows, true, row));
    SIRDAR_UNROLL
    for (int set = 0; set < kSets; ++set) {
      const int column = 64 * set + 2 * lane;
      if (column >= config.head_dim) continue;
      *reinterpret_cast<uint32_t*>(to + column) =
          pack<config.element>(dq[set].first * params.scale, dq[set].second * params.scale);
    }
  }
};

// Of a tile's rows, as find_far() says.
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE void make_far(const BackwardParams& params, const Modification& modification,
                            const QueryTile& place, uint32_t far, int warp, int lane) {
  const Sequence sequence = sequence_of<config>(params, place.walked);
  SIRDAR_NO_UNROLL
  for (; far != 0; far &= far - 1) {
    const int row = place.tile * config.block_m + 16 * warp + lost_row(ptx::lowest_bit(far));
    FarQuery<config, Modification>{
        {params, modification, sequence, place.walked.batch, place.head}, row, lane}
        .run();
  }
}

// The far rows that see some of a block's keys.
template <BackwardConfig config>
struct FarRows {
  const BackwardParams& params;
  Sequence sequence;
  int batch, first_head, first_key;
  int begin = 0, end = 0;  // words of 32 rows

  SIRDAR_DEVICE FarRows(const BackwardParams& all, int block) : params(all) {
    const int of_head = params.num_blocks_n * config.cluster_size, head = block / of_head;
    first_key = (block - head * of_head) * block_keys(config);
    const int number = head / params.num_heads_kv;
    const Walked walked = walked_of<config>(params, number);
    batch = walked.batch;
    first_head = (head - number * params.num_heads_kv) * params.group_size;
    sequence = sequence_of<config>(params, walked);
    const int end_key = ptx::min_of(first_key + block_keys(config), sequence.k.length);
    if (first_key >= end_key) return;
    const BackwardBounds<config> bounds = bounds_of<config>(params, sequence);
    const int end_row = ptx::min_of(bounds.row_end(end_key - 1), sequence.q.length);
    begin = bounds.row_begin(first_key) / kFarRows;
    end = (ptx::max_of(end_row, 0) + kFarRows - 1) / kFarRows;
  }

  SIRDAR_DEVICE uint32_t word(int head, int index) const {
    if (index >= end) return 0;
    return load_late<config>(params.far_rows + index +
                             tile_index(params, sequence, head, 0) * (config.block_m / kFarRows));
  }
  SIRDAR_DEVICE bool are_there(int lane) const {
    uint32_t rows = 0;
    SIRDAR_NO_UNROLL
    for (int n = 0; n < params.group_size; ++n) {
      SIRDAR_NO_UNROLL
      for (int index = begin + lane; index < end; index += 32) rows |= word(first_head + n, index);
    }
    return ptx::any_sync(rows != 0);
  }
};

// A key's dK and dV, by a warp.
template <BackwardConfig config, class Modification>
struct FarGradients {
  const FarRows<config>& rows;
  ExactPairs<config, Modification, PairsBy::warp> pairs;
  int key, lane;
  TwoColumns dk[columns(config.head_dim) / 64], dv[columns(config.head_dim_v) / 64];
  bool is_seen = false;

  template <int kColumns>
  SIRDAR_DEVICE void add_row(TwoColumns (&sums)[columns(kColumns) / 64], const uint16_t* row,
                             float factor) const {
    SIRDAR_UNROLL
    for (int i = 0; i < columns(kColumns) / 64; ++i) {
      const int column = 64 * i + 2 * lane;
      if (column >= kColumns) continue;
      const FloatPair two = pairs.two_of(row + column);
      sums[i].first = ptx::fma_of(factor, two.low, sums[i].first);
      sums[i].second = ptx::fma_of(factor, two.high, sums[i].second);
    }
  }
  SIRDAR_DEVICE void add_pair(int row) {
    const ExactPair pair = pairs.pair(row, key);
    if (!pair.is_seen) return;
    is_seen = true;
    const BackwardParams& params = pairs.params;
    add_row<config.head_dim>(dk, pairs.at(params.q_rows, true, row), pair.product);
    add_row<config.head_dim_v>(dv, pairs.at(params.dout_rows, true, row), pair.weight);
  }
  SIRDAR_DEVICE void add_head() {
    SIRDAR_NO_UNROLL
    for (int first = rows.begin; first < rows.end; first += 32) {
      const uint32_t own = rows.word(pairs.head, first + lane);
      SIRDAR_NO_UNROLL
      for (uint32_t words = ptx::ballot_sync(own != 0); words != 0; words &= words - 1) {
        const int n = ptx::lowest_bit(words);
        SIRDAR_NO_UNROLL
        for (uint32_t left = ptx::shfl(own, n); left != 0; left &= left - 1) {
          add_pair((first + n) * kFarRows + ptx::lowest_bit(left));
        }
      }
    }
  }

  template <int kColumns>
  SIRDAR_DEVICE void store(const TwoColumns (&sums)[columns(kColumns) / 64], const RowView& view,
                           float factor) const {
    auto* const row = const_cast<uint16_t*>(pairs.at(view, false, key));
    SIRDAR_UNROLL
    for (int i = 0; i < columns(kColumns) / 64; ++i) {
      const int column = 64 * i + 2 * lane;
      if (column >= kColumns) continue;
      auto* const to = reinterpret_cast<uint32_t*>(row + column);
      const FloatPair old = unpack<config.element>(*to);
      *to = pack<config.element>(ptx::fma_of(sums[i].first, factor, old.low),
                                 ptx::fma_of(sums[i].second, factor, old.high));
    }
  }
  SIRDAR_DEVICE void run() {
    const BackwardParams& params = pairs.params;
    SIRDAR_NO_UNROLL
    for (int n = 0; n < params.group_size; ++n) {
      pairs.head = rows.first_head + n;
      add_head();
    }
    if (!is_seen) return;
    store<config.head_dim>(dk, params.dk_rows, params.scale);
    store<config.head_dim_v>(dv, params.dv_rows, 1.0f);
  }
};

// Whether a warp's keys get any: almost never.
template <BackwardConfig config>
SIRDAR_DEVICE bool has_far(const BackwardParams& params, const LostShare& share, int lane) {
  const int num_blocks = num_key_blocks<config>(params);
  SIRDAR_NO_UNROLL
  for (int block = share.first_block; block < num_blocks; block += share.step) {
    if (FarRows<config>(params, block).are_there(lane)) return true;
  }
  return false;
}

// To the keys of a share that are not made again.
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE void add_far(const BackwardParams& params, const Modification& modification,
                           const LostShare& share, int warp, int lane) {
  const int num_blocks = num_key_blocks<config>(params);
  SIRDAR_NO_UNROLL
  for (int block = share.first_block; block < num_blocks; block += share.step) {
    const FarRows<config> rows(params, block);
    if (!rows.are_there(lane)) continue;
    const uint32_t words = lost_word<config>(params, block, lane);
    SIRDAR_NO_UNROLL
    for (int i = 0; i < block_keys(config) / 4; ++i) {  // of a warp
      const int word = warp + 4 * (i / 16), key = rows.first_key + 16 * word + i % 16;
      if (key >= rows.sequence.k.length) break;
      uint32_t lost = ptx::shfl(words, word);
      if constexpr (is_wide(config)) lost |= ptx::shfl(words, word + 4);
      if ((lost >> lost_bit(i % 16) & 1) != 0) continue;
      FarGradients<config, Modification>{
          rows, {params, modification, rows.sequence, rows.batch, rows.first_head}, key, lane}
          .run();
    }
  }
}

// What is not finite is made again, as restore() does, then far rows: those of the tile that a warp
// converts, and what those of all tiles give the keys of its share. One call, behind which convert
// has nothing left to do: it keeps no registers for it.
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE_APART void remake(const BackwardParams& params, const Modification& modification,
                                LostShare share, uint32_t far, int warp, int lane) {
  share.rows &= ~far;
  restore<config>(params, modification, share, warp, lane);
  make_far<config>(params, modification, share.tile, far, warp, lane);
  add_far<config>(params, modification, share, warp, lane);
}

}  // namespace sirdar::sm90
