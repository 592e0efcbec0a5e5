// Gradients that many rows and heads add to, each element in a fixed order: dbias of pairs, and
// what query rows or keys have left of dbias and dsink.
#pragma once

#include "cuda/rows/backward/key_row.cuh"
#include "cuda/rows/backward/query_row.cuh"

namespace sirdar::rows {

// 32 neighbouring elements of a row of dbias at a time, a lane each; every sequence and head that
// adds to them comes by. The pairs are computed once more.
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE void compute_bias_row(const BackwardParams& params, const Modification& modification,
                                    long long index, uint32_t shared) {
  const PairSums& sums = params.dbias;
  const int lane = ptx::thread_idx_x() % 32;
  const int row = static_cast<int>(index % params.query.seqlen);
  const long long list = index / params.query.seqlen;
  const int own_batch = static_cast<int>(list / sums.num_heads);
  const int own_head = static_cast<int>(list % sums.num_heads);
  const int last_batch = sums.num_batches > 1 ? own_batch : params.batch - 1;
  const int last_head = sums.num_heads > 1 ? own_head : params.num_heads - 1;
  float* gradient = sums.gradient + own_batch * sums.stride_batch + own_head * sums.stride_head +
                    row * sums.stride_row;
  const int seqlen_k = static_cast<int>(params.key.seqlen);
  for (int first = 0; first < seqlen_k; first += 32) {
    float sum = 0;
    for (int batch = own_batch; batch <= last_batch; ++batch) {
      for (int head = own_head; head <= last_head; ++head) {
        const Head at = Head::of(params, batch, head);
        if (row >= at.q.length) continue;
        const QueryRow<config, Modification> own(params, modification, at, row, shared, lane);
        const IntRange keys = own.pairs.keys_of(row);
        if (first >= keys.end || first + 32 <= keys.begin) continue;
        const QueryState state = load_state(params.states + at.head * params.rows_of_head +
                                            row_place(params.query, at.q, at.batch, row));
        if (!takes_part(state)) continue;
        own.stage();
        PairGradient gradient_of_pair;
        own.meet(own.pairs.begin_row(row), first, keys, state, gradient_of_pair);
        sum += gradient_of_pair.score;
      }
    }
    if (first + lane < seqlen_k) gradient[(first + lane) * sums.stride_key] = sum;
  }
}

SIRDAR_DEVICE double warp_sum(double x) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const auto bits = __builtin_bit_cast(uint64_t, x);
    const uint32_t low = ptx::shfl_xor(static_cast<uint32_t>(bits), distance);
    const uint32_t high = ptx::shfl_xor(static_cast<uint32_t>(bits >> 32), distance);
    x += __builtin_bit_cast(double, static_cast<uint64_t>(high) << 32 | low);
  }
  return x;
}

// One element of a gradient, by a block: its threads take turns, then their sums are added up.
struct TermSum {
  const BackwardParams& params;
  const TermSums& sums;
  int batch, head, row;  // of the element

  SIRDAR_DEVICE static TermSum of(const BackwardParams& params, const TermSums& sums,
                                  long long element) {
    const long long list = element / sums.num_rows;
    return {params, sums, static_cast<int>(list / sums.num_heads),
            static_cast<int>(list % sums.num_heads), static_cast<int>(element % sums.num_rows)};
  }

  // The share of thread `thread` of `num_threads`.
  SIRDAR_DEVICE double share(int thread, int num_threads) const {
    const Extents& extents = sums.are_keys != 0 ? params.key : params.query;
    const long long num_batches = sums.num_batches > 1 ? 1 : params.batch;
    const long long num_heads = sums.num_heads > 1 ? 1 : params.num_heads;
    const long long num_rows = sums.num_rows > 1 ? 1 : extents.seqlen;
    const long long rows_of_head = sums.are_keys != 0 ? params.keys_of_head : params.rows_of_head;
    double sum = 0;
    for (long long n = thread; n < num_batches * num_heads * num_rows; n += num_threads) {
      const long long list = n / num_rows;
      const int b = batch + static_cast<int>(list / num_heads);
      const long long h = head + list % num_heads, i = row + n % num_rows;
      const Sequence sequence = extents.sequence(b);
      if (i >= sequence.length) continue;
      const long long place = h * rows_of_head + row_place(extents, sequence, b, i);
      sum += static_cast<double>(ptx::load_constant(sums.terms + place * sums.stride));
    }
    return sum;
  }

  SIRDAR_DEVICE void compute() const {
    const int thread = ptx::thread_idx_x(), lane = thread % 32, warp = thread / 32;
    const uint32_t shared = ptx::dynamic_shared();
    const double of_warp = warp_sum(share(thread, kThreads));
    const auto bits = __builtin_bit_cast(uint64_t, of_warp);
    if (lane == 0) {
      ptx::store_shared(shared + static_cast<uint32_t>(16 * warp),
                        {static_cast<int>(static_cast<uint32_t>(bits)),
                         static_cast<int>(static_cast<uint32_t>(bits >> 32)), 0, 0});
    }
    ptx::syncthreads();
    if (thread == 0) {
      double sum = 0;
      for (int n = 0; n < kWarps; ++n) {
        const ptx::Int4 words = ptx::load_shared_int4(shared + static_cast<uint32_t>(16 * n));
        sum +=
            __builtin_bit_cast(double, static_cast<uint64_t>(static_cast<uint32_t>(words.y)) << 32 |
                                           static_cast<uint32_t>(words.x));
      }
      sums.gradient[batch * sums.stride_batch + head * sums.stride_head + row * sums.stride_row] =
          static_cast<float>(sum);
    }
    ptx::syncthreads();
  }
};

SIRDAR_DEVICE void add_terms(const BackwardParams& params, const TermSums& sums) {
  if (sums.gradient == nullptr) return;
  const long long count = static_cast<long long>(sums.num_batches) * sums.num_heads * sums.num_rows;
  for (long long n = ptx::block_idx_x(); n < count; n += ptx::grid_dim_x())
    TermSum::of(params, sums, n).compute();
}

}  // namespace sirdar::rows
