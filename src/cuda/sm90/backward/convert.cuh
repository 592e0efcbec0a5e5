// The kernel behind: dQ from the sums in memory, which lie as accumulators do, to the caller's
// rows.
#pragma once

#include "cuda/sm90/backward/far_rows.cuh"
#include "cuda/sm90/backward/remainders.cuh"
#include "cuda/sm90/backward/restore.cuh"
#include "cuda/sm90/backward/walk.cuh"
#include "cuda/sm90/fragment.cuh"

namespace sirdar::sm90 {

// A thread's part of a unit, which nobody writes any more.
template <BackwardConfig config>
SIRDAR_DEVICE void add(float (&values)[32], const float* unit) {
  SIRDAR_UNROLL
  for (int i = 0; i < 8; ++i) {
    const ptx::Int4 four = config.converts_early ? ptx::load_once_int4(unit + 512 * i)
                                                 : ptx::load_written_int4(unit + 512 * i);
    values[4 * i] += ptx::float_of(static_cast<uint32_t>(four.x));
    values[4 * i + 1] += ptx::float_of(static_cast<uint32_t>(four.y));
    values[4 * i + 2] += ptx::float_of(static_cast<uint32_t>(four.z));
    values[4 * i + 3] += ptx::float_of(static_cast<uint32_t>(four.w));
  }
}

SIRDAR_DEVICE int num_query_tiles(const BackwardParams& params) {
  return params.num_walked * params.num_heads * params.walked_tiles;
}

// The tile of a thread block: in their order in memory or, where they are taken early, about in
// that in which they are done. Of a section all heads are walked at one time; key block 0 adds last
// and goes from the first tile to the last, but a window's key blocks end from right to left.
template <BackwardConfig config>
SIRDAR_DEVICE QueryTile query_tile_of(const BackwardParams& params, int index) {
  QueryTile place;
  if constexpr (!config.converts_early || !is_masked(config)) {
    const int walked_head = index / params.walked_tiles, number = walked_head / params.num_heads;
    place.walked = walked_of<config>(params, number);
    place.head = walked_head - number * params.num_heads;
    place.tile = index - walked_head * params.walked_tiles;
  } else {
    const int head_tiles = params.group_size * params.walked_tiles;
    const int tiles = params.section_heads * head_tiles;
    const int section = ptx::min_of(index / tiles, params.num_sections);
    const int first_head = section * params.section_heads;
    const int heads = section < params.num_sections
                          ? params.section_heads
                          : params.num_walked * params.num_heads_kv - first_head;
    const int rest = index - section * tiles, row = rest / heads;
    const int head = first_head + rest - row * heads, of_group = row / params.walked_tiles;
    const int number = head / params.num_heads_kv;
    place.walked = walked_of<config>(params, number);
    place.head = (head - number * params.num_heads_kv) * params.group_size + of_group;
    place.tile = row - of_group * params.walked_tiles;
    if constexpr (config.mask == MaskForm::interval || config.has_mask_mod) {
      place.tile = params.walked_tiles - 1 - place.tile;
    }
  }
  return place;
}

// Until nobody adds to a tile any more, of whose sums `adders` is how many key blocks do. Sums may
// be read by all threads behind it.
template <BackwardConfig config>
SIRDAR_DEVICE void wait_for_tile(const int* turns, const int (&adders)[config.num_sums],
                                 int thread) {
  constexpr int kParts = tile_parts(config);
  SIRDAR_UNROLL
  for (int i = 0; i < config.num_sums * kParts; ++i) {
    if (thread == i) ptx::wait_until_equal(turns + i, adders[i / kParts]);
  }
  ptx::syncthreads();
}

// The units of one query tile, a warp 16 rows of each. Returns the rows that are not finite as
// find_lost() does, those of the second 64 rows two bits further.
template <BackwardConfig config>
SIRDAR_DEVICE uint32_t convert_tile(const BackwardParams& params, const QueryTile& place,
                                    int thread, int lane) {
  constexpr int kUnits = tile_units(config), kChunks = columns(config.head_dim) / 64,
                kSums = config.num_sums;
  const int batch = place.walked.batch, head = place.head, tile = place.tile;
  const Sequence sequence = sequence_of<config>(params, place.walked);
  int stored = sequence.q.length;
  if constexpr (config.has_lengths) {
    stored = rows_there<true>(params.cu_seqlens_q, params.seqlen_q, batch);
  }
  if (tile * config.block_m >= stored) return 0;
  int adders[kSums];
  SIRDAR_UNROLL
  for (int sum = 0; sum < kSums; ++sum) {
    adders[sum] = count_adders<config>(params, sequence, tile, sum);
    if constexpr (config.has_mask_mod) {
      if (adders[sum] > 0) {
        adders[sum] = count_adders<config>(params, batch, head, tile, sum);
      }
    }
  }
  const long long first_sum = tile_index(params, sequence, head, tile) * kSums;
  if constexpr (config.converts_early) {
    wait_for_tile<config>(params.turns + first_sum * tile_parts(config), adders, thread);
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
        params.dq_sum + (first_sum * kUnits + unit) * kUnitFloats + 4 * thread;
    float values[32];  // of a thread, as accumulators
    SIRDAR_UNROLL
    for (float& value : values) value = 0;
    SIRDAR_UNROLL
    for (int sum = 0; sum < kSums; ++sum) {
      if (adders[sum] > 0) add<config>(values, sums + sum * (kUnits * kUnitFloats));
    }
    const float scale = params.scale * (1 / weight_factor(config));
    uint32_t words[16];  // columns 8 i + 2 (lane % 4) of row r, then of row r + 8
    SIRDAR_UNROLL
    for (int i = 0; i < 8; ++i) {
      const auto value = [&](int n) { return values[4 * i + n] * scale; };
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
        uint16_t* const to = rows + row * view.stride_row + column;
        if constexpr (config.converts_early) {
          ptx::store_once_int4(to, piece);
        } else {
          *reinterpret_cast<ptx::Int4*>(to) = piece;
        }
      }
    }
    if constexpr (restores(config)) lost |= find_lost(values) << (2 * (unit / kChunks));
  }
  return lost;
}

template <ConvertConfig config, class Modification = language::NoModification>
SIRDAR_DEVICE void convert(const BackwardParams& params, const Modification& modification = {}) {
  constexpr BackwardConfig kBackward = config.backward;
  const int thread = ptx::thread_idx_x(), lane = thread % 32, index = ptx::block_idx_x();
  const int tiles = num_query_tiles(params), blocks = ptx::grid_dim_x();
  // Of early ones the last waits too, so that this kernel does not end before the main one.
  const bool is_early = kBackward.converts_early && index < tiles - 1;
  if (!is_early) ptx::griddepcontrol_wait();
  LostShare share{{}, 0, index, blocks};
  if constexpr (kBackward.converts_early) {
    if (index >= tiles) {  // only keys
      share.first_block = index - tiles;
      share.step = blocks - tiles;
    } else {  // keys are not known yet
      share.first_block = num_key_blocks<kBackward>(params);
    }
  }
  if (index < tiles) {
    share.tile = query_tile_of<kBackward>(params, index);
    share.rows = convert_tile<kBackward>(params, share.tile, thread, lane);
  }
  if constexpr (has_levels(kBackward)) {
    const uint32_t far = index < tiles ? find_far<kBackward>(params, share.tile, thread / 32) : 0;
    share.rows |= far;
    if (has_lost<kBackward>(params, share, lane) || has_far<kBackward>(params, share, lane)) {
      remake<kBackward>(params, modification, share, far, thread / 32, lane);
    }
  } else if constexpr (restores(kBackward)) {
    if (!has_lost<kBackward>(params, share, lane)) return;
    restore<kBackward>(params, modification, share, thread / 32, lane);
  }
}

template <ConvertConfig config, class Modification>
SIRDAR_DEVICE void modified_convert(const ModifiedBackwardParams<Modification>& params) {
  convert<config>(params.backward, params.modification);
}

}  // namespace sirdar::sm90
