// The kernel before: of each query row -lse / scale and -delta, delta = dO . O - dlse, as the
// products' accumulators begin with; and zeros where others add.
#pragma once

#include "cuda/sm90/backward/level.cuh"
#include "cuda/sm90/backward/peaks.cuh"
#include "cuda/sm90/backward/work.cuh"
#include "cuda/sm90/fragment.cuh"

namespace sirdar::sm90 {

// A block takes 32 rows of 16 heads, in the order of memory, and writes them head by head.
template <PrepareConfig config>
struct Prepare {
  static constexpr BackwardConfig kBackward = config.backward;
  // Of a row: a power of two, so that they exchange their sums.
  static constexpr int kLanes = kBackward.head_dim_v <= 64    ? 8
                                : kBackward.head_dim_v <= 128 ? 16
                                                              : 32;
  static constexpr int kRowsOfPass = kPrepareThreads / kLanes;

  const BackwardParams& params;
  int thread;
  Sequence sequence;
  int batch, first_head, first_row;  // batch 0 of ragged tensors

  SIRDAR_DEVICE static const uint16_t* at(const RowView& view, int batch, int head, int row) {
    return static_cast<const uint16_t*>(view.data) + batch * view.stride_batch +
           head * view.stride_head + row * view.stride_row;
  }
  SIRDAR_DEVICE static float scalar(const RowView& view, int batch, int head, int row) {
    return static_cast<const float*>(
        view.data)[batch * view.stride_batch + head * view.stride_head + row * view.stride_row];
  }

  // Eight elements of row i of the block and column 8 (thread % kLanes); zeros where it has none.
  SIRDAR_DEVICE ptx::Int4 load(const RowView& view, int i) const {
    const int column = 8 * (thread % kLanes);
    const int head = first_head + i % kPrepareHeads, row = first_row + i / kPrepareHeads;
    if (head >= params.num_heads || row >= sequence.q.length || column >= kBackward.head_dim_v) {
      return {0, 0, 0, 0};
    }
    return ptx::load_constant_int4(at(view, batch, head, sequence.q.begin + row) + column);
  }

  // To shared memory, [head][row]. Several rows are asked for before the first is used.
  SIRDAR_DEVICE void reduce_rows(uint32_t sums) const {
    constexpr int kAhead = 4;
    SIRDAR_NO_UNROLL
    for (int first = thread / kLanes; first < kPrepareTokens * kPrepareHeads;
         first += kAhead * kRowsOfPass) {
      ptx::Int4 out[kAhead], dout[kAhead];
      SIRDAR_UNROLL
      for (int n = 0; n < kAhead; ++n) {
        out[n] = load(params.out_rows, first + n * kRowsOfPass);
        dout[n] = load(params.dout_rows, first + n * kRowsOfPass);
      }
      SIRDAR_UNROLL
      for (int n = 0; n < kAhead; ++n) {
        float sum = dot_of_eight<kBackward.element>(out[n], dout[n]);
        SIRDAR_UNROLL
        for (int mask = 1; mask < kLanes; mask *= 2) sum += ptx::shfl_xor(sum, mask);
        const int i = first + n * kRowsOfPass;
        const int place = i % kPrepareHeads * (kPrepareTokens + 1) + i / kPrepareHeads;
        if (thread % kLanes == 0) ptx::store_shared(sums + 4 * place, ptx::bits_of(sum));
        if constexpr (is_scaled(kBackward)) {
          float square = dot_of_eight<kBackward.element>(dout[n], dout[n]);
          SIRDAR_UNROLL
          for (int mask = 1; mask < kLanes; mask *= 2) square += ptx::shfl_xor(square, mask);
          const uint32_t dst = sums + kPrepareBytes + 4 * place;
          if (thread % kLanes == 0) ptx::store_shared(dst, ptx::bits_of(square));
        }
      }
    }
  }

  // A head's rows each time.
  static constexpr int kPasses = kPrepareTokens * kPrepareHeads / kPrepareThreads;

  // `far`: of a warp's rows those whose lse is far from 0.
  SIRDAR_DEVICE void write_rows(uint32_t sums, uint32_t (&far)[kPasses]) const {
    const int stored = sequence.num_tiles * kBackward.block_m;
    SIRDAR_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      const int i = thread + pass * kPrepareThreads;
      far[pass] = 0;
      const int head = first_head + i / kPrepareTokens, row = first_row + i % kPrepareTokens;
      if (head >= params.num_heads || row >= stored) continue;
      const int place = i / kPrepareTokens * (kPrepareTokens + 1) + i % kPrepareTokens;
      float lse = kMinusInfinity, delta = 0;
      if (row < sequence.q.length) {
        lse = scalar(params.lse, batch, head, sequence.q.begin + row);
        delta = ptx::float_of(ptx::load_shared(sums + 4 * place));
        if (params.dlse.data != nullptr)
          delta -= scalar(params.dlse, batch, head, sequence.q.begin + row);
      }
      const long long index = tile_index(params, sequence, head, 0) * kBackward.block_m + row;
      const bool is_empty = lse == kMinusInfinity;  // no key is seen, or there is no such row
      const bool weighs = !is_empty && !is_far<kBackward>(lse);
      float start = weighs ? -lse * params.inverse_scale : params.hidden;
      // Exponents begin with it, and weights are kept times a power of two.
      if constexpr (is_scaled(kBackward) && has_slopes(kBackward)) start += kWeightExponent;
      if constexpr (has_levels(kBackward)) {
        far[pass] = ptx::ballot_sync(is_far<kBackward>(lse));
        if (thread % 32 == 0) params.far_rows[index / kFarRows] = 0;
      }
      params.start_lse[index] = start;
      params.start_delta[index] = is_empty ? 0.0f : -delta;
      if constexpr (is_scaled(kBackward)) {
        const uint32_t square = ptx::load_shared(sums + kPrepareBytes + 4 * place);
        write_peaks(index / kPeakRows, is_empty ? 0 : peak_of(ptx::float_of(square)),
                    is_empty ? 0 : peak_of(ptx::absolute(delta)));
      }
    }
  }
  // `in_batch`: of ragged tensors too.
  template <class Modification>
  SIRDAR_DEVICE void write_all_levels(const Modification& modification, int in_batch,
                                      const uint32_t (&far)[kPasses]) const {
    static_assert(kPrepareTokens == kFarRows);
    SIRDAR_NO_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      if (far[pass] == 0) continue;
      const int head = first_head + (thread + pass * kPrepareThreads) / kPrepareTokens;
      const FarPairs<kBackward, Modification> pairs{params, modification, sequence, in_batch, head};
      write_levels(pairs, first_row, far[pass], thread % 32);
    }
  }
  // Of a warp's rows.
  SIRDAR_DEVICE void write_peaks(long long place, int of_dout, int of_delta) const {
    static_assert(kPrepareTokens == kPeakRows);
    of_dout = warp_peak(of_dout);
    of_delta = warp_peak(of_delta);
    if (thread % 32 != 0) return;
    params.peaks[2 * place] = of_dout;
    params.peaks[2 * place + 1] = of_delta;
  }

  // Sums that others add to begin at 0, and turns.
  SIRDAR_DEVICE void clear() const {
    const long long tiles = static_cast<long long>(params.num_heads) * params.total_tiles;
    const long long first = static_cast<long long>(ptx::block_idx_x()) * kPrepareThreads + thread;
    const long long step = static_cast<long long>(ptx::grid_dim_x()) * kPrepareThreads;
    if constexpr (draws_items(kBackward)) {
      if (first == 0) *params.items_drawn = 0;
    }
    if constexpr (kBackward.is_deterministic) {
      const long long turns = tiles * kBackward.num_sums * tile_parts(kBackward);
      for (long long i = first; i < turns; i += step) params.turns[i] = 0;
    } else {
      const long long pieces = tiles * tile_units(kBackward) * (kUnitBytes / 16);
      ptx::Int4* const sums = reinterpret_cast<ptx::Int4*>(params.dq_sum);
      for (long long i = first; i < pieces; i += step) sums[i] = ptx::Int4{0, 0, 0, 0};
    }
  }
};

template <PrepareConfig config, class Modification = language::NoModification>
SIRDAR_DEVICE void prepare(const BackwardParams& params, const Modification& modification = {}) {
  constexpr int kM = config.backward.block_m;
  ptx::griddepcontrol_launch_dependents();
  const int row_blocks = (params.num_tiles * kM + kPrepareTokens - 1) / kPrepareTokens;
  const int head_blocks = (params.num_heads + kPrepareHeads - 1) / kPrepareHeads;
  const int rest = ptx::block_idx_x() / head_blocks;
  const int batch = rest / row_blocks;
  const bool is_ragged = params.cu_seqlens_q.data != nullptr;
  const Prepare<config> rows{params,
                             ptx::thread_idx_x(),
                             sequence_of<config.backward>(params, batch),
                             is_ragged ? 0 : batch,
                             (ptx::block_idx_x() - rest * head_blocks) * kPrepareHeads,
                             (rest - batch * row_blocks) * kPrepareTokens};
  const uint32_t sums = ptx::dynamic_shared();
  rows.clear();
  rows.reduce_rows(sums);
  ptx::syncthreads();
  uint32_t far[Prepare<config>::kPasses];
  rows.write_rows(sums, far);
  if constexpr (has_levels(config.backward)) rows.write_all_levels(modification, batch, far);
  // The kernels of masks run beside this one, which must not end before them.
  if constexpr (config.backward.has_mask_mod) {
    if (ptx::block_idx_x() == 0) ptx::griddepcontrol_wait();
  }
}

template <PrepareConfig config, class Modification>
SIRDAR_DEVICE void modified_prepare(const ModifiedBackwardParams<Modification>& params) {
  prepare<config>(params.backward, params.modification);
}

}  // namespace sirdar::sm90
