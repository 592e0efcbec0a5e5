// How an item ends, and the loop over items. Included by consumer.cuh.
#pragma once

#include "cuda/sm90/forward/consumer.cuh"
#include "cuda/sm90/forward/parts.cuh"

namespace sirdar::sm90 {

// Writes 16-bit results of one row; `word` holds columns c, c + 1.
template <ForwardConfig config, class Modification>
struct Epilogue {
  using Owner = Consumer<config, Modification>;
  Owner& c;
  const WorkItem& item;
  RowPair inverse;
  LostRows lost;

  SIRDAR_DEVICE float value(int i) const {
    return c.out[i] * (is_lower_row(i) ? inverse.lower : inverse.upper);
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

  // Of a part of the keys, in fp32: four lanes store 32 bytes that follow each other.
  SIRDAR_DEVICE float* part_of(int tile_row) const {
    return part_results<config>(c.params.parts, item,
                                query_row_of<config>(c.params, item, tile_row));
  }
  SIRDAR_DEVICE void store_parts(int row, int stored) const {
    SIRDAR_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (!is_stored(row + 8 * half, stored)) continue;
      float* const part = part_of(row + 8 * half) + 2 * (c.lane % 4);
      SIRDAR_UNROLL
      for (int column = 0; column < config.head_dim_v; column += 8) {
        const int i = column / 2 + 2 * half;
        ptx::store_global(reinterpret_cast<TwoFloats*>(part + column), {value(i), value(i + 1)});
      }
    }
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
                           c.scale, lost, c.rows.reference, inverse, write);
      // Overwritten anyway, but not for the compiler, which would keep them through all that.
      SIRDAR_UNROLL
      for (float& value : c.out) value = 0;
      SIRDAR_UNROLL
      for (float& value : c.scores) value = 0;
    }
  }

  // The item's own Q buffer, of which each warpgroup touches its own 64 rows only.
  SIRDAR_DEVICE uint32_t staging() const { return c.s.q(c.q_ring.stage) + c.warpgroup * 8192; }
  static constexpr int kChunkBytes = (Owner::kStagesOut ? Owner::kM : 64) * 128;
  // Where 16 bytes of a row of the warpgroup are in it: columns 64 chunk + 8 piece on.
  SIRDAR_DEVICE static uint32_t staged(int row, int chunk, int piece) {
    return chunk * kChunkBytes + row * 128 + ((piece ^ (row & 7)) << 4);
  }

  SIRDAR_DEVICE void stage(uint32_t tile) const {
    const int row = 16 * c.warp + (c.lane & 15);
    // The last scores of the item may still be read from Q by another warp's products, where no
    // turn has been waited for since.
    if constexpr (!config.takes_turns && Owner::kStagesOut) {
      ptx::barrier_sync(1 + config.num_consumers + c.warpgroup, 128);
    }
    SIRDAR_UNROLL
    for (int j = 0; j < Owner::kWidth / 16; ++j) {
      ptx::stmatrix_x4(tile + staged(row, j / 4, (j & 3) * 2 + (c.lane >> 4)), word(4 * j),
                       word(4 * j + 1), word(4 * j + 2), word(4 * j + 3));
    }
    restore([&](int place, int column, float first, float second) {
      ptx::store_shared(
          tile + staged(16 * c.warp + place, column / 64, column % 64 / 8) + column % 8 * 2,
          pack<config.element>(first, second));
    });
  }

  // Into a stage of V, from which another warp sends it; or from here what ends early.
  SIRDAR_DEVICE void hand_over(int row, int stored) const {
    if (!config.has_lengths || c.last_query_row(item) < stored) {
      const uint32_t tile = c.wait_out_stage();
      stage(tile);
      ptx::fence_proxy_async_shared();  // TMA reads what was staged
      c.hand_out_over(tile);
    } else {
      store_rows(row, stored);
      restore_stored(row, stored);
      c.hand_out_over(kStoredOut);
    }
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
    restore([&](int place, int column, float first, float second) {
      const int tile_row = row - c.lane / 4 + place;
      if (!is_stored(tile_row, stored) || column >= config.head_dim_v) return;
      if constexpr (is_split(config)) {
        ptx::store_global(reinterpret_cast<TwoFloats*>(part_of(tile_row) + column),
                          {first, second});
      } else {
        *reinterpret_cast<uint32_t*>(row_pointer(tile_row) + column) =
            pack<config.element>(first, second);
      }
    });
  }

  // Zeros, also where a weight of 0 has met a value that is not finite.
  SIRDAR_DEVICE void clear_empty_rows() {
    const bool clears_upper = is_empty_row(inverse.upper),
               clears_lower = is_empty_row(inverse.lower);
    if (!ptx::any_sync(clears_upper || clears_lower)) return;
    SIRDAR_UNROLL
    for (int i = 0; i < Owner::kWidth / 2; ++i) {
      if (is_lower_row(i) ? clears_lower : clears_upper) c.out[i] = 0;
    }
    if (clears_upper) inverse.upper = 0;
    if (clears_lower) inverse.lower = 0;
  }
};

// A number of each of the thread's rows, to the view.
template <ForwardConfig config, class Modification>
SIRDAR_DEVICE void store_statistic(const Consumer<config, Modification>& c, const RowView& view,
                                   RowPair values) {
  const WorkItem& item = c.item;
  const int row = c.thread_row(item), stored = stored_rows<config>(c.params, item.batch);
  const auto place = [&](QueryRow of) {
    return static_cast<float*>(view.data) + item.batch * view.stride_batch +
           of.head * view.stride_head + (item.q_begin + of.row) * view.stride_row;
  };
  const auto is_stored = [&](int tile_row) {
    return query_row<config>(tile_row) < stored && has_head<config>(c.params, tile_row);
  };
  float* const upper = place(c.upper_row(item));
  float* const lower =
      config.num_packed_heads == 1 ? upper + 8 * view.stride_row : place(c.lower_row(item));
  if (is_stored(row)) *upper = values.upper;
  if (is_stored(row + 8)) *lower = values.lower;
}

// Of a part of the keys: what combine.cuh wants to know. Results stay as they are, but for rows
// that see nothing of it.
template <ForwardConfig config, class Modification>
SIRDAR_DEVICE RowPair end_part(const Consumer<config, Modification>& c) {
  const WorkItem& item = c.item;
  const int stored = stored_rows<config>(c.params, item.batch);
  const auto end = [&](int tile_row, float reference, float own_sum) {
    const float sum = quad_sum(own_sum);
    if (c.lane % 4 == 0 && query_row<config>(tile_row) < stored &&
        has_head<config>(c.params, tile_row)) {
      write_end(c.params.parts, item, query_row_of<config>(c.params, item, tile_row),
                {reference, sum});
    }
    const bool is_unused = config.has_lengths && query_row<config>(tile_row) >= item.seqlen_q;
    return sum == 0 || is_unused ? -0.0f : 1.0f;
  };
  const int row = c.thread_row(item);
  return {end(row, c.rows.reference.upper, c.rows.sum.upper),
          end(row + 8, c.rows.reference.lower, c.rows.sum.lower)};
}

template <ForwardConfig config, class Modification>
SIRDAR_DEVICE RowPair Consumer<config, Modification>::end_rows() const {
  if constexpr (is_split(config)) return end_part(*this);
  RowPair sink{kMinusInfinity, kMinusInfinity};
  if constexpr (config.has_sink) {
    const auto sink_of = [&](QueryRow of) {
      return params.sink[of.head * params.stride_sink] * kLog2e;
    };
    sink.upper = sink_of(upper_row(item));
    sink.lower = kHasOneHead ? sink.upper : sink_of(lower_row(item));
  }
  const auto end_of = [&](float reference, float sum, float sink_of_row) {
    const float all = quad_sum(sum);
    return config.has_sink ? finish_row(reference, all, sink_of_row) : finish_row(reference, all);
  };
  RowResult upper = end_of(rows.reference.upper, rows.sum.upper, sink.upper),
            lower = end_of(rows.reference.lower, rows.sum.lower, sink.lower);
  RowPair maxima{rows.reference.upper * kLn2, rows.reference.lower * kLn2};
  if constexpr (config.has_lengths) {  // stored rows that take no part
    constexpr RowResult kUnused{-0.0f, kMinusInfinity};
    const int row = thread_row(item);
    if (query_row<config>(row) >= item.seqlen_q) upper = kUnused, maxima.upper = kMinusInfinity;
    if (query_row<config>(row + 8) >= item.seqlen_q) lower = kUnused, maxima.lower = kMinusInfinity;
  }
  const bool is_ended = !config.shares_last_round || item.split == 0;
  if (lane % 4 == 0 && is_ended) {
    if constexpr (config.writes_lse) store_statistic(*this, params.lse, {upper.lse, lower.lse});
    if constexpr (config.writes_max_logit) store_statistic(*this, params.max_logit, maxima);
  }
  return {upper.inverse, lower.inverse};
}

template <ForwardConfig config, class Modification>
SIRDAR_DEVICE void finish_item(Consumer<config, Modification>& c, const WorkItem& item,
                               RowPair inverse) {
  if constexpr (hands_rows_over(config)) c.mark_rows();
  Epilogue<config, Modification> epilogue{c, item, inverse, {}};
  if constexpr (restores_rows(config) && !hands_rows_over(config)) {
    epilogue.lost = lost_rows(c.out);
  }
  epilogue.clear_empty_rows();
  const int row = c.thread_row(item), stored = stored_rows<config>(c.params, item.batch);
  if constexpr (config.num_q_buffers > 1) {
    epilogue.stage(epilogue.staging());
    epilogue.send(row, stored);
  } else if constexpr (sends_out(config)) {
    epilogue.hand_over(row, stored);
  } else {
    if constexpr (is_split(config)) {
      epilogue.store_parts(row, stored);
    } else {
      epilogue.store_rows(row, stored);
    }
    epilogue.restore_stored(row, stored);
    if constexpr (hands_rows_over(config)) c.hand_rows_over();
  }
}

// In last_round.cuh.
template <ForwardConfig config, class Modification>
SIRDAR_DEVICE void finish_share(Consumer<config, Modification>& c, RowPair inverse);

template <ForwardConfig config, class Modification>
SIRDAR_DEVICE void finish(Consumer<config, Modification>& c, RowPair inverse) {
  if constexpr (config.shares_last_round) {
    finish_share(c, inverse);
  } else {
    finish_item(c, c.item, inverse);
  }
}

// The first scores of an item are issued with the last product of the item before.
template <ForwardConfig config, class Modification>
SIRDAR_DEVICE void Consumer<config, Modification>::run_across() {
  const Flag<false> whole{};
  const Flag<config.trim == 2> half{};
  begin();
  while (true) {
    walk();
    release_previous_out();
    RingPosition<config.num_q_buffers> next_ring = q_ring;
    next_ring.advance();
    ptx::mbarrier_wait(s.q_full(next_ring.stage), next_ring.parity);
    const int next_slot = slot + 1 == num_items_ahead(config) ? 0 : slot + 1;
    const WorkItem next = read_item<config>(params, s.info(next_slot));
    int blocks = 0;
    RowState state;
    RowPair inverse;
    if (next.block >= 0) {
      blocks = own_blocks(next);
      skip_k(next.num_blocks - blocks);
      wait_k();
      if (needs_half(next, blocks)) {
        inverse = cross(next_ring.stage, next, blocks, state, half);
      } else {
        inverse = cross(next_ring.stage, next, blocks, state, whole);
      }
    } else {
      inverse = finish_last();
    }
    finish(*this, inverse);
    store_pending = true;
    out_started = 0;
    if (next.block < 0) return;
    skip_v(next.num_blocks - blocks);
    rows = state;
    item = next;
    num_blocks = blocks;
    q_ring = next_ring;
    slot = next_slot;
    overflows = 0;
    set_first_limits(item.first_block + num_blocks - 1);
  }
}

// They come after its output: Q's one buffer is free when the last scores are taken, and what is
// left of an item hides the load.
template <ForwardConfig config, class Modification>
SIRDAR_DEVICE void Consumer<config, Modification>::run_apart() {
  while (true) {
    ptx::syncwarp();  // one lane gives Q and the item's place back for all that have read it
    begin();
    walk();
    finish(*this, finish_last());
    q_ring.advance();
    slot = slot + 1 == num_items_ahead(config) ? 0 : slot + 1;
    ptx::mbarrier_wait(s.q_full(q_part()), q_ring.parity);
    item = read_item<config>(params, s.info(slot));
    if (item.block < 0) break;
    rows = {};
    out_started = 0;
    overflows = 0;
  }
  dismiss(q_ring.parity);
}

template <ForwardConfig config, class Modification>
SIRDAR_DEVICE void Consumer<config, Modification>::run() {
  ptx::mbarrier_wait(s.q_full(q_part()), 0);
  item = read_item<config>(params, s.info(0));
  if (item.block < 0) {
    dismiss(0);
    return;
  }
  if (config.takes_turns && warpgroup == kWarpgroups - 1) ptx::barrier_arrive(1, 256);
  if constexpr (kStagesOut) {
    run_across();
  } else {
    run_apart();
  }
  if (config.takes_turns && warpgroup == 0) wait_turn();  // the last turn passed on
  if (kStagesOut && is_leader()) ptx::cp_async_bulk_wait_group<0>();
}

}  // namespace sirdar::sm90
