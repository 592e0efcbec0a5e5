// The kernel behind: dQ from the sums in memory, which lie as accumulators do, to the caller's
// rows.
#pragma once

#include "cuda/sm90/backward/restore.cuh"
#include "cuda/sm90/backward/walk.cuh"
#include "cuda/sm90/fragment.cuh"

namespace sirdar::sm90 {

// A thread's part of a unit, which nobody writes any more.
SIRDAR_DEVICE void add(float (&values)[32], const float* unit) {
  SIRDAR_UNROLL
  for (int i = 0; i < 8; ++i) {
    const ptx::Int4 four = ptx::load_constant_int4(unit + 512 * i);
    values[4 * i] += ptx::float_of(static_cast<uint32_t>(four.x));
    values[4 * i + 1] += ptx::float_of(static_cast<uint32_t>(four.y));
    values[4 * i + 2] += ptx::float_of(static_cast<uint32_t>(four.z));
    values[4 * i + 3] += ptx::float_of(static_cast<uint32_t>(four.w));
  }
}

// The units of one query tile, a warp 16 rows of each. Returns the rows that are not finite as
// find_lost() does, those of the second 64 rows two bits further.
template <BackwardConfig config>
SIRDAR_DEVICE uint32_t convert_tile(const BackwardParams& params, int thread, int lane) {
  constexpr int kUnits = tile_units(config), kChunks = columns(config.head_dim) / 64,
                kSums = config.num_sums;
  const int index = ptx::block_idx_x();
  const int batch_head = index / params.num_tiles, tile = index - batch_head * params.num_tiles;
  const int batch = batch_head / params.num_heads, head = batch_head - batch * params.num_heads;
  const Sequence sequence = sequence_of<config>(params, batch);
  const int stored = rows_there<config.has_lengths>(params.cu_seqlens_q, params.seqlen_q, batch);
  if (tile * config.block_m >= stored) return 0;
  bool is_there[kSums];
  SIRDAR_UNROLL
  for (int sum = 0; sum < kSums; ++sum) {
    is_there[sum] = has_adders<config>(params, sequence, tile, sum);
    if constexpr (config.has_mask_mod) {
      is_there[sum] = is_there[sum] && is_added_to<config>(params, batch, head, tile, sum);
    }
  }
  const RowView& view = params.dq_rows;
  const bool is_ragged = params.cu_seqlens_q.data != nullptr;
  uint16_t* const rows = static_cast<uint16_t*>(view.data) +
                         (is_ragged ? 0 : batch) * view.stride_batch + head * view.stride_head +
                         sequence.q.begin * view.stride_row;
  uint32_t lost = 0;
  SIRDAR_NO_UNROLL
  for (int unit = 0; unit < kUnits; ++unit) {
    const float* const sums =
        params.dq_sum +
        (tile_index(params, sequence, head, tile) * (kSums * kUnits) + unit) * kUnitFloats +
        4 * thread;
    float values[32];  // of a thread, as accumulators
    SIRDAR_UNROLL
    for (float& value : values) value = 0;
    SIRDAR_UNROLL
    for (int sum = 0; sum < kSums; ++sum) {
      if (is_there[sum]) add(values, sums + sum * (kUnits * kUnitFloats));
    }
    uint32_t words[16];  // columns 8 i + 2 (lane % 4) of row r, then of row r + 8
    SIRDAR_UNROLL
    for (int i = 0; i < 8; ++i) {
      const auto value = [&](int n) { return values[4 * i + n] * params.scale; };
      words[i] = pack<config.element>(value(0), value(1));
      words[8 + i] = pack<config.element>(value(2), value(3));
    }
    SIRDAR_UNROLL
    for (int part = 0; part < 4; ++part) {  // 32 columns of the upper row, of the lower one
      const int lower = part / 2, first = 8 * lower + 4 * (part % 2);
      const int row =
          tile * config.block_m + unit / kChunks * 64 + 16 * (thread / 32) + lane / 4 + 8 * lower;
      const int column = unit % kChunks * 64 + 32 * (part % 2) + 8 * (lane % 4);
      const ptx::Int4 piece =
          gather_row(lane, {words[first], words[first + 1], words[first + 2], words[first + 3]});
      if (row < stored && column < config.head_dim) {
        *reinterpret_cast<ptx::Int4*>(rows + row * view.stride_row + column) = piece;
      }
    }
    if constexpr (restores(config)) lost |= find_lost(values) << (2 * (unit / kChunks));
  }
  return lost;
}

template <ConvertConfig config, class Modification = language::NoModification>
SIRDAR_DEVICE void convert(const BackwardParams& params, const Modification& modification = {}) {
  const int thread = ptx::thread_idx_x(), lane = thread % 32;
  ptx::griddepcontrol_wait();
  const uint32_t lost = convert_tile<config.backward>(params, thread, lane);
  if constexpr (restores(config.backward)) {
    if (!has_lost<config.backward>(params, lost, lane)) return;
    restore<config.backward>(params, modification, lost, thread / 32, lane);
  }
}

template <ConvertConfig config, class Modification>
SIRDAR_DEVICE void modified_convert(const ModifiedBackwardParams<Modification>& params) {
  convert<config>(params.backward, params.modification);
}

}  // namespace sirdar::sm90
