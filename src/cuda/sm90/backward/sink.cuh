// The gradient of the sinks: of each query head the sum over its rows of what the sink weighs,
// times -delta, which prepare() has left in the workspace.
#pragma once

#include "cuda/sm90/backward/config.h"
#include "cuda/sm90/backward/work.cuh"
#include "cuda/sm90/fragment.cuh"

namespace sirdar::sm90 {

// By a whole thread block; each thread gets the same.
SIRDAR_DEVICE float block_sum(float own, uint32_t shared) {
  const int thread = ptx::thread_idx_x();
  for (int distance = 1; distance < 32; distance *= 2) own += ptx::shfl_xor(own, distance);
  if (thread % 32 == 0) ptx::store_shared(shared + thread / 32 * 4, ptx::bits_of(own));
  ptx::syncthreads();
  float sum = 0;
  for (int warp = 0; warp < kSinkThreads / 32; ++warp) {
    sum += ptx::float_of(ptx::load_shared(shared + warp * 4));
  }
  return sum;
}

// A block takes a head.
template <SinkConfig config>
SIRDAR_DEVICE void sink_gradient(const BackwardParams& params) {
  constexpr BackwardConfig kBackward = config.backward;
  const int head = ptx::block_idx_x();
  const float sink = ptx::load_constant(params.sink + head * params.stride_sink);
  const bool is_ragged = params.cu_seqlens_q.data != nullptr;
  float sum = 0;
  for (int batch = 0; batch < params.batch; ++batch) {
    const Sequence sequence = sequence_of<kBackward>(params, batch);
    const long long first = tile_index(params, sequence, head, 0) * kBackward.block_m;
    const float* const start_delta = params.start_delta + first;
    const float* const lse = static_cast<const float*>(params.lse.data) +
                             (is_ragged ? 0 : batch) * params.lse.stride_batch +
                             head * params.lse.stride_head +
                             sequence.q.begin * params.lse.stride_row;
    for (int row = ptx::thread_idx_x(); row < sequence.q.length; row += kSinkThreads) {
      const float of_row = ptx::load_constant(lse + row * params.lse.stride_row);
      // Without a finite lse a row has no weights.
      const bool counts = ptx::absolute(of_row) < -kMinusInfinity;
      const RowLevel level =
          is_far<kBackward>(of_row) ? params.levels[first + row] : RowLevel{of_row, 1};
      const auto exponent = static_cast<float>(static_cast<double>(sink) - level.base);
      const float weight = level.weight * ptx::exp2_approx(exponent * kLog2e);
      if (counts) sum = ptx::fma_of(weight, ptx::load_constant(start_delta + row), sum);
    }
  }
  sum = block_sum(sum, ptx::dynamic_shared());
  if (ptx::thread_idx_x() == 0) params.dsink[head * params.stride_dsink] = sum;
}

}  // namespace sirdar::sm90
