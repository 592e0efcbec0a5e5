// What the parts of split keys know of a row becomes its result: always in the order of the keys,
// so that the same call gives the same bits. A warp takes a row of a query tile.
#pragma once

#include "cuda/sm90/forward/parts.cuh"
#include "cuda/sm90/forward/row_end.cuh"

namespace sirdar::sm90 {

template <ForwardConfig config>
struct Combiner {
  static constexpr int kPieces = (config.head_dim_v + 127) / 128;  // of four columns, a lane's
  static constexpr int kAhead = 8;  // parts whose loads are in flight
  const ForwardParams& params;
  WorkItem item;
  QueryRow of;
  int num_parts, lane;

  SIRDAR_DEVICE WorkItem part(int split) const {
    WorkItem one = item;
    one.split = split;
    return one;
  }

  // The row's end, and factors that make its parts relative to the same: the lane's own is of
  // part 32 i + lane.
  static constexpr int kRounds = kMostSplits / 32;
  SIRDAR_DEVICE PartEnd join_ends(float (&factors)[kRounds]) const {
    PartEnd ends[kRounds];
    float top = kMinusInfinity;
    SIRDAR_UNROLL
    for (int i = 0; i < kRounds; ++i) {
      const int split = 32 * i + lane;
      ends[i] = {kMinusInfinity, 0};
      if (split < num_parts) ends[i] = read_end(params.parts, part(split), of);
      top = ptx::max_of(top, ends[i].reference);
    }
    SIRDAR_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
      top = ptx::max_of(top, ptx::shfl_xor(top, distance));
    }
    const float usable = top == kMinusInfinity ? 0.0f : top;
    float sum = 0;
    SIRDAR_UNROLL
    for (int i = 0; i < kRounds; ++i) {
      factors[i] = ptx::exp2_approx(ends[i].reference - usable);
      sum = ptx::fma_of(factors[i], ends[i].sum, sum);
    }
    SIRDAR_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) sum += ptx::shfl_xor(sum, distance);
    return {top, sum};
  }

  SIRDAR_DEVICE void add(const float (&factors)[kRounds], FourFloats (&sums)[kPieces]) const {
    const long long stride = params.parts.stride_split * config.head_dim_v;
    const float* own = part_results<config>(params.parts, part(0), of) + 4 * lane;
    SIRDAR_NO_UNROLL
    for (int first = 0; first < num_parts; first += kAhead) {
      FourFloats values[kAhead][kPieces];
      SIRDAR_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        SIRDAR_UNROLL
        for (int piece = 0; piece < kPieces; ++piece) {
          const bool is_there = first + i < num_parts && 4 * lane + 128 * piece < config.head_dim_v;
          values[i][piece] = {};
          if (is_there) {
            values[i][piece] = ptx::load_global(
                reinterpret_cast<const FourFloats*>(own + i * stride + 128 * piece));
          }
        }
      }
      const float of_lanes = factors_of(factors, first / 32);
      SIRDAR_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const float factor = ptx::float_of(ptx::shfl(ptx::bits_of(of_lanes), (first + i) % 32));
        SIRDAR_UNROLL
        for (int piece = 0; piece < kPieces; ++piece) {
          SIRDAR_UNROLL
          for (int n = 0; n < 4; ++n) {
            sums[piece].a[n] = ptx::fma_of(factor, values[i][piece].a[n], sums[piece].a[n]);
          }
        }
      }
      own += kAhead * stride;
    }
  }
  // Without an index that registers cannot have.
  SIRDAR_DEVICE static float factors_of(const float (&factors)[kRounds], int round) {
    float found = factors[0];
    SIRDAR_UNROLL
    for (int i = 1; i < kRounds; ++i) found = i == round ? factors[i] : found;
    return found;
  }

  template <class T>
  SIRDAR_DEVICE T* place(const RowView& view) const {
    return static_cast<T*>(view.data) + item.batch * view.stride_batch +
           of.head * view.stride_head + (item.q_begin + of.row) * view.stride_row;
  }

  SIRDAR_DEVICE void write(const FourFloats (&sums)[kPieces], float inverse) const {
    uint16_t* const row = place<uint16_t>(params.out_rows);
    const auto word = [&](float low, float high) {
      return is_empty_row(inverse) ? 0u : pack<config.element>(low * inverse, high * inverse);
    };
    SIRDAR_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      const int column = 4 * lane + 128 * piece;
      if (column >= config.head_dim_v) continue;
      const auto& a = sums[piece].a;
      uint32_t* const words = reinterpret_cast<uint32_t*>(row + column);
      words[0] = word(a[0], a[1]);
      words[1] = word(a[2], a[3]);
    }
  }

  SIRDAR_DEVICE void run() const {
    const bool is_used = of.row < item.seqlen_q;
    float factors[kRounds];
    FourFloats sums[kPieces] = {};
    const PartEnd end = join_ends(factors);
    add(factors, sums);
    float sink = kMinusInfinity;
    if constexpr (config.has_sink) sink = params.sink[of.head * params.stride_sink] * kLog2e;
    RowResult result = config.has_sink ? finish_row(end.reference, end.sum, sink)
                                       : finish_row(end.reference, end.sum);
    if (!is_used) result = {-0.0f, kMinusInfinity};
    write(sums, result.inverse);
    if (lane != 0) return;
    if constexpr (config.writes_lse) *place<float>(params.lse) = result.lse;
    if constexpr (config.writes_max_logit) {
      *place<float>(params.max_logit) = is_used ? end.reference * kLn2 : kMinusInfinity;
    }
  }
};

template <CombineConfig of>
SIRDAR_DEVICE void combine(const ForwardParams& params) {
  constexpr ForwardConfig config = of.forward;
  constexpr int kBlocks = block_m(config) / kCombineRows;
  const int index = ptx::block_idx_x(), thread = ptx::thread_idx_x();
  const WorkItem item = whole_item_of<config>(params, index / kBlocks);
  const int tile_row =
      item.block * block_m(config) + index % kBlocks * kCombineRows + ptx::uniform(thread / 32);
  const bool is_stored = item.num_blocks > 0 && has_head<config>(params, tile_row) &&
                         query_row<config>(tile_row) < stored_rows<config>(params, item.batch);
  ptx::griddepcontrol_wait();  // for the parts; by every block, or this kernel ends before that one
  if (!is_stored) return;
  const int blocks = blocks_per_part(params, item.num_blocks);
  const int num_parts = (item.num_blocks + blocks - 1) / blocks;
  Combiner<config>{params, item, query_row_of<config>(params, item, tile_row), num_parts,
                   thread % 32}
      .run();
}

}  // namespace sirdar::sm90
