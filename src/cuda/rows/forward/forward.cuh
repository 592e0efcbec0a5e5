// The forward row by row: no tensor cores, no TMA, nothing that a stride or an address must be.
// README.md has the plan and the measurements. Device half; forward.cc fills the parameters.
#pragma once

#include "cuda/rows/forward/row.cuh"

namespace sirdar::rows {

// A launch with a modification: the kernel's parameters, then the modification's.
template <class Modification>
struct ModifiedParams {
  ForwardParams forward;
  Modification modification;
};

// The results of a row's last keys leave, and those of a row that takes no part.
template <ForwardConfig config>
struct RowResult {
  const ForwardParams& params;
  const RowPlace& place;
  int lane;

  SIRDAR_DEVICE void write(const RowState<config>& state) const {
    const float sum = warp_sum(state.sum), largest = warp_max(state.largest);
    const bool saw_nan = ptx::any_sync(state.saw_nan), is_empty = sum == 0.0f;
    const float inverse = 1.0f / sum;
    auto* out = static_cast<StoredOf<config.element_out>*>(params.out) +
                params.out_rows.offset(place.batch, place.q, place.row, place.head);
    SIRDAR_UNROLL
    for (int i = 0; i < lane_columns(config); ++i) {
      const int column = column_of<config>(lane, i);
      if (column >= params.head_dim_v) continue;
      out[column] = Number<config.element_out>::stored(is_empty ? 0.0f : state.out[i] * inverse);
    }
    if (lane != 0) return;
    if (params.lse != nullptr) {
      params.lse[params.lse_rows.offset(place.batch, place.q, place.row, place.head)] =
          is_empty ? kMinusInfinity : state.reference + language::log(sum);
    }
    if (params.max_logit != nullptr) {
      // +inf whatever a NaN stands for.
      const bool is_nan = saw_nan && largest != language::kInfinity;
      params.max_logit[params.max_logit_rows.offset(place.batch, place.q, place.row, place.head)] =
          is_nan ? language::kNaN : largest;
    }
  }
};

// Warps that shared a row's keys: each leaves what it found, and the first of them adds up.
template <ForwardConfig config>
struct SharedRow {
  uint32_t base;  // shared address of the first warp's part
  int lane;

  SIRDAR_DEVICE uint32_t part(int warp) const {
    return base + static_cast<uint32_t>(warp * warp_bytes(config) + query_bytes(config));
  }
  SIRDAR_DEVICE uint32_t piece(int warp, int n) const {
    return part(warp) + 16 + static_cast<uint32_t>(16 * (32 * n + lane));
  }
  SIRDAR_DEVICE static int word(float x) { return static_cast<int>(ptx::bits_of(x)); }
  SIRDAR_DEVICE static float number(int x) { return ptx::float_of(static_cast<uint32_t>(x)); }

  SIRDAR_DEVICE void leave(int warp, const RowState<config>& state) const {
    const float sum = warp_sum(state.sum), largest = warp_max(state.largest);
    const bool saw_nan = ptx::any_sync(state.saw_nan);
    if (lane == 0) {
      ptx::store_shared(part(warp),
                        {word(state.reference), word(sum), word(largest), saw_nan ? 1 : 0});
    }
    SIRDAR_UNROLL
    for (int n = 0; n < num_pieces(config); ++n) {
      int words[4] = {0, 0, 0, 0};
      SIRDAR_UNROLL
      for (int i = 0; i < 4 && 4 * n + i < lane_columns(config); ++i) {
        words[i] = word(state.out[4 * n + i]);
      }
      ptx::store_shared(piece(warp, n), {words[0], words[1], words[2], words[3]});
    }
  }

  SIRDAR_DEVICE void take(int warp, RowState<config>& state) const {
    const ptx::Int4 found = ptx::load_shared_int4(part(warp));
    const float top = ptx::max_of(state.reference, number(found.x));
    state.raise_to(top);
    const float factor = language::exp(number(found.x) - (top == kMinusInfinity ? 0.0f : top));
    if (lane == 0) state.sum += factor * number(found.y);
    state.largest = ptx::max_of(state.largest, number(found.z));
    state.saw_nan = state.saw_nan || found.w != 0;
    SIRDAR_UNROLL
    for (int n = 0; n < num_pieces(config); ++n) {
      const ptx::Int4 out = ptx::load_shared_int4(piece(warp, n));
      const int words[4] = {out.x, out.y, out.z, out.w};
      SIRDAR_UNROLL
      for (int i = 0; i < 4 && 4 * n + i < lane_columns(config); ++i) {
        state.out[4 * n + i] = ptx::fma_of(factor, number(words[i]), state.out[4 * n + i]);
      }
    }
  }
};

// A row by as many warps as share it; `split` is this one's among them.
template <ForwardConfig config, class Modification>
SIRDAR_DEVICE void compute_row(const ForwardParams& params, const Modification& modification,
                               long long index, int warp) {
  const int lane = ptx::thread_idx_x() % 32, split = config.splits > 1 ? warp : 0;
  const uint32_t base = ptx::dynamic_shared();
  const RowPlace place = RowPlace::of(params, index);
  if (place.row >= place.q.stored) return;  // the same for all that share the row
  float sink = kMinusInfinity;
  const bool takes_part = place.row < place.q.length;
  if (params.sink != nullptr && takes_part) {
    sink = ptx::load_constant(params.sink + place.head * params.stride_sink);
  }
  RowState<config> state;
  state.begin(sink, split == 0 && lane == 0);
  if (takes_part) {
    RowWalk<config, Modification>{params, modification,
                                  place,  {base + static_cast<uint32_t>(warp * warp_bytes(config))},
                                  lane,   state}
        .run(split);
  }
  if constexpr (config.splits > 1) {
    const SharedRow<config> shared{base, lane};
    if (split > 0) shared.leave(warp, state);
    ptx::syncthreads();
    if (split == 0) {
      for (int other = 1; other < config.splits; ++other) shared.take(other, state);
    }
    ptx::syncthreads();
  }
  if (split == 0) RowResult<config>{params, place, lane}.write(state);
}

template <ForwardConfig config, class Modification = language::NoModification>
SIRDAR_DEVICE void forward(const ForwardParams& params, const Modification& modification = {}) {
  static_assert(is_valid(config));
  constexpr int kRows = kWarps / config.splits;  // of a block at a time
  const int warp = ptx::uniform(ptx::thread_idx_x() / 32);
  const long long step = static_cast<long long>(kRows) * ptx::grid_dim_x();
  long long index = static_cast<long long>(kRows) * ptx::block_idx_x() + warp / config.splits;
  for (; index < params.num_rows; index += step) {
    compute_row<config>(params, modification, index, warp);
    ptx::syncwarp();  // the next query takes the place of this one
  }
}

template <ForwardConfig config, class Modification>
SIRDAR_DEVICE void modified_forward(const ModifiedParams<Modification>& params) {
  forward<config>(params.forward, params.modification);
}

}  // namespace sirdar::rows
