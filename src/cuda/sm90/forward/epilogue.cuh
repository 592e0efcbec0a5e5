// How an item ends. Included by consumer.cuh.
#pragma once

#include "cuda/sm90/forward/consumer.cuh"

namespace sirdar::sm90 {

// The row's normaliser, its log, and whether there is anything to normalise.
struct RowResult {
  float inverse, lse;  // lse in natural log
  bool is_empty;
};

// `sink` in log2 units, -inf where there is none. The sink is one more weight in the sum, without a
// value; the larger of the two references keeps both in range.
SIRDAR_DEVICE RowResult finish_row(float reference, float sum, float sink) {
  const float top = ptx::max_of(reference, sink);
  const float factor = ptx::exp2_approx(reference - top);
  const float total = sum * factor + ptx::exp2_approx(sink - top);
  RowResult result;
  result.is_empty = sum == 0.0f;
  result.inverse = result.is_empty ? 0.0f : factor / total;
  result.lse = total == 0.0f ? kMinusInfinity : (top + ptx::log2_approx(total)) * kLn2;
  return result;
}

// Writes 16-bit results of one row; `word` holds columns c, c + 1.
template <ForwardConfig config, class Modification>
struct Epilogue {
  using Owner = Consumer<config, Modification>;
  Owner& c;
  const WorkItem& item;
  const RowState& rows;
  int q_stage;  // its Q buffer
  RowResult upper, lower;
  LostRows lost;

  SIRDAR_DEVICE float value(int i) const {
    const RowResult& row = is_lower_row(i) ? lower : upper;
    return row.is_empty ? 0.0f : c.out[i] * row.inverse;
  }
  // Word i covers accumulator registers 2 i and 2 i + 1.
  SIRDAR_DEVICE uint32_t word(int i) const {
    return pack<config.element>(value(2 * i), value(2 * i + 1));
  }

  SIRDAR_DEVICE uint16_t* row_pointer(int tile_row) const {
    const RowView& view = c.params.out_rows;
    const auto [head, row] = query_row_of<config>(c.params, item, tile_row);
    return static_cast<uint16_t*>(view.data) + item.batch * view.stride_batch +
           head * view.stride_head + (item.q_begin + row) * view.stride_row;
  }
  // Whether the tile row is one of a sequence of so many, and of a head.
  SIRDAR_DEVICE bool is_stored(int tile_row, int stored) const {
    return query_row<config>(tile_row) < stored && has_head<config>(c.params, tile_row);
  }

  // A row's eight columns from 8 (lane % 4) on, of the 32 that begin with first_word's.
  SIRDAR_DEVICE ptx::Int4 gather(int first_word) const {
    return gather_row(c.lane, {word(first_word), word(first_word + 2), word(first_word + 4),
                               word(first_word + 6)});
  }

  SIRDAR_DEVICE void store_rows(int row, int stored) const {
    constexpr int kWidth = Owner::kWidth;
    uint16_t* pointers[2] = {row_pointer(row), row_pointer(row + 8)};
    SIRDAR_UNROLL
    for (int half = 0; half < 2; ++half) {
      const bool stores = is_stored(row + 8 * half, stored);
      SIRDAR_UNROLL
      for (int column = 0; column + 32 <= kWidth; column += 32) {
        const ptx::Int4 piece = gather(column / 4 + half);
        const int own = column + 8 * (c.lane % 4);
        if (stores && own < config.head_dim_v) {
          *reinterpret_cast<ptx::Int4*>(pointers[half] + own) = piece;
        }
      }
      SIRDAR_UNROLL
      for (int column = kWidth / 32 * 32; column < kWidth; column += 8) {
        const int own = column + 2 * (c.lane % 4);
        if (stores && own < config.head_dim_v) {
          *reinterpret_cast<uint32_t*>(pointers[half] + own) = word(column / 4 + half);
        }
      }
    }
  }

  // What is stored already of rows that are not finite is replaced.
  template <class Write>
  SIRDAR_DEVICE void restore(Write write) const {
    if constexpr (restores_rows(config) && !hands_rows_over(config)) {
      if ((lost.upper | lost.lower) == 0) return;
      ptx::syncwarp();
      restore_rows<config>(c.params, c.modification, item, c.first_row(item) + 16 * c.warp, c.lane,
                           c.scale, lost, rows.reference, {upper.inverse, lower.inverse}, write);
      // Overwritten anyway, but not for the compiler, which would keep them through all that.
      SIRDAR_UNROLL
      for (float& value : c.out) value = 0;
      SIRDAR_UNROLL
      for (float& value : c.scores) value = 0;
    }
  }

  // The item's own Q buffer, of which each warpgroup touches its own 64 rows only.
  SIRDAR_DEVICE uint32_t staging() const { return c.s.q(q_stage) + c.warpgroup * 8192; }
  // Where 16 bytes of a row of the warpgroup are in it: columns 64 chunk + 8 piece on.
  SIRDAR_DEVICE static uint32_t staged(int row, int chunk, int piece) {
    return chunk * (Owner::kM * 128) + row * 128 + ((piece ^ (row & 7)) << 4);
  }

  SIRDAR_DEVICE void stage() const {
    const uint32_t tile = staging();
    const int row = 16 * c.warp + (c.lane & 15);
    // The last scores of the item may still be read from Q by another warp's products, where no
    // turn has been waited for since.
    if constexpr (!config.takes_turns) {
      ptx::barrier_sync(1 + config.num_consumers + c.warpgroup, 128);
    }
    SIRDAR_UNROLL
    for (int j = 0; j < Owner::kWidth / 16; ++j) {
      ptx::stmatrix_x4(tile + staged(row, j / 4, (j & 3) * 2 + (c.lane >> 4)), word(4 * j),
                       word(4 * j + 1), word(4 * j + 2), word(4 * j + 3));
    }
    restore([&](int place, int column, uint32_t results) {
      ptx::store_shared(
          tile + staged(16 * c.warp + place, column / 64, column % 64 / 8) + column % 8 * 2,
          results);
    });
  }

  // What is staged, by TMA where all of the warpgroup's rows are stored.
  SIRDAR_DEVICE void send(int row, int stored) const {
    const bool is_whole = !config.has_lengths || c.last_query_row(item) < stored;
    if (!is_whole) store_staged(row - c.lane / 4, stored);
    ptx::fence_proxy_async_shared();  // TMA reads what was staged, and writes the next item's Q
                                      // there
    // Of a part that left by ordinary stores the buffer goes back, too, when all warps are here.
    ptx::barrier_sync(1 + config.num_consumers + c.warpgroup, 128);
    if (!is_whole || !c.is_leader()) return;
    const int batch = config.has_lengths && c.params.cu_seqlens_q.data != nullptr ? 0 : item.batch;
    SIRDAR_UNROLL
    for (int j = 0; j < columns(config.head_dim_v) / 64; ++j) {
      if constexpr (config.num_packed_heads == 1) {
        ptx::cp_async_bulk_tensor_4d_store(c.params.out, staging() + j * Owner::kM * 128, 64 * j,
                                           item.q_begin + c.first_row(item), item.head, batch);
      } else {
        ptx::cp_async_bulk_tensor_5d_store(c.params.out, staging() + j * Owner::kM * 128, 64 * j,
                                           place_in_pack<config>(c.first_row(item)),
                                           item.q_begin + c.first_query_row(item), item.head,
                                           batch);
      }
    }
    ptx::cp_async_bulk_commit_group();
  }

  // A warp's sixteen rows, which it has staged itself.
  SIRDAR_DEVICE void store_staged(int first_row, int stored) const {
    constexpr int kPieces = config.head_dim_v / 8;
    const uint32_t tile = staging();
    ptx::syncwarp();
    SIRDAR_NO_UNROLL
    for (int i = c.lane; i < 16 * kPieces; i += 32) {
      const int place = i / kPieces, piece = i % kPieces;
      if (!is_stored(first_row + place, stored)) continue;
      *reinterpret_cast<ptx::Int4*>(row_pointer(first_row + place) + 8 * piece) =
          ptx::load_shared_int4(tile + staged(16 * c.warp + place, piece / 8, piece % 8));
    }
  }

  SIRDAR_DEVICE void restore_stored(int row, int stored) const {
    restore([&](int place, int column, uint32_t results) {
      const int first_row = row - c.lane / 4;
      if (is_stored(first_row + place, stored) && column < config.head_dim_v) {
        *reinterpret_cast<uint32_t*>(row_pointer(first_row + place) + column) = results;
      }
    });
  }

  SIRDAR_DEVICE void store_scalar(const RowView& view, int tile_row, float value_of_row) const {
    const auto [head, row] = query_row_of<config>(c.params, item, tile_row);
    float* base =
        static_cast<float*>(view.data) + item.batch * view.stride_batch + head * view.stride_head;
    base[(item.q_begin + row) * view.stride_row] = value_of_row;
  }
  SIRDAR_DEVICE void store_scalars(const RowView& view, int row, int stored, RowPair values) const {
    if (c.lane % 4 != 0) return;
    if (is_stored(row, stored)) store_scalar(view, row, values.upper);
    if (is_stored(row + 8, stored)) store_scalar(view, row + 8, values.lower);
  }
};

template <ForwardConfig config, class Modification>
SIRDAR_DEVICE void Consumer<config, Modification>::end_item(const RowState& done) {
  constexpr int kAhead = num_items_ahead(config), kBuffers = config.num_q_buffers;
  const WorkItem ended = read_item<config>(params, s.info((slot + kAhead - 1) % kAhead));
  if constexpr (hands_rows_over(config)) mark_rows();
  RowPair sink{kMinusInfinity, kMinusInfinity};
  if constexpr (config.has_sink) {
    const auto sink_of = [&](QueryRow of) {
      return params.sink[of.head * params.stride_sink] * kLog2e;
    };
    sink.upper = sink_of(upper_row(ended));
    sink.lower = kHasOneHead ? sink.upper : sink_of(lower_row(ended));
  }
  const int row = thread_row(ended), stored = stored_rows<config>(params, ended.batch);
  const RowPair sum{quad_sum(done.sum.upper), quad_sum(done.sum.lower)};
  Epilogue<config, Modification> epilogue{*this,
                                          ended,
                                          done,
                                          (q_ring.stage + kBuffers - 1) % kBuffers,
                                          finish_row(done.reference.upper, sum.upper, sink.upper),
                                          finish_row(done.reference.lower, sum.lower, sink.lower),
                                          {}};
  if constexpr (restores_rows(config) && !hands_rows_over(config)) {
    epilogue.lost = lost_rows(out);
  }
  const auto maximum_of = [](float reference) {
    return reference == kUnseen ? kMinusInfinity : reference * kLn2;
  };
  RowPair maxima{maximum_of(done.reference.upper), maximum_of(done.reference.lower)};
  if constexpr (config.has_lengths) {  // stored rows that take no part
    constexpr RowResult kUnused{0.0f, kMinusInfinity, true};
    if (query_row<config>(row) >= ended.seqlen_q)
      epilogue.upper = kUnused, maxima.upper = kMinusInfinity;
    if (query_row<config>(row + 8) >= ended.seqlen_q)
      epilogue.lower = kUnused, maxima.lower = kMinusInfinity;
  }
  if constexpr (config.writes_lse) {
    epilogue.store_scalars(params.lse, row, stored, {epilogue.upper.lse, epilogue.lower.lse});
  }
  if constexpr (config.writes_max_logit) {
    epilogue.store_scalars(params.max_logit, row, stored, maxima);
  }
  if constexpr (config.num_q_buffers > 1) {
    epilogue.stage();
    epilogue.send(row, stored);
  } else {
    epilogue.store_rows(row, stored);
    epilogue.restore_stored(row, stored);
    if constexpr (hands_rows_over(config)) hand_rows_over();
  }
}

}  // namespace sirdar::sm90
