// Gradients of tensors that a score_mod reads: any pair may add to any element. Each of a number of
// warps goes through some of the query rows and adds to sums of its own, in the order of its pairs;
// then the sums of each element are added up.
#pragma once

#include "cuda/rows/backward/sums.cuh"

namespace sirdar::rows {

// Adds each lane's term to sums[place], what goes to one place together, in an order that depends
// on nothing else. A place of -1: none.
SIRDAR_DEVICE void scatter(double* sums, int place, float term, int lane) {
  double total = static_cast<double>(term);
  uint32_t rest = ptx::ballot_sync(place >= 0);
  while (rest != 0) {
    const int first = ptx::lowest_bit(rest);
    const int its_place = static_cast<int>(ptx::shfl(static_cast<uint32_t>(place), first));
    const bool is_same = place == its_place;
    const uint32_t same = ptx::ballot_sync(is_same);
    rest &= ~same;
    if ((same & (same - 1)) == 0) continue;
    const double together = warp_sum(is_same ? static_cast<double>(term) : 0.0);
    if (lane == first) {
      total = together;
    } else if (is_same) {
      place = -1;
    }
  }
  if (place >= 0) sums[place] += total;
  ptx::syncwarp();
}

template <BackwardConfig config, class Modification>
struct TensorRows {
  static constexpr int kReads = Modification::kReads;

  const BackwardParams& params;
  const Modification& modification;
  double* sums;
  int lane;
  uint32_t shared;

  SIRDAR_DEVICE void add_row(const Head& at, int row) const {
    const QueryState state = load_state(params.states + at.head * params.rows_of_head +
                                        row_place(params.query, at.q, at.batch, row));
    if (!takes_part(state)) return;
    const QueryRow<config, Modification> own(params, modification, at, row, shared, lane);
    own.stage();
    const IntRange keys = own.pairs.keys_of(row);
    const auto of_row = own.pairs.begin_row(row);
    for (int first = keys.begin; first < keys.end; first += 32) {
      int places[kReads];
      float slopes[kReads];
      SIRDAR_UNROLL
      for (int n = 0; n < kReads; ++n) {
        places[n] = -1;
        slopes[n] = 0;
      }
      PairGradient gradient;
      own.meet(of_row, first, keys, state, gradient, [&](const auto& of_key, const Logit& logit) {
        modification.reads(of_row, of_key, logit.score, places, slopes);
      });
      SIRDAR_UNROLL
      for (int n = 0; n < kReads; ++n) {
        if (Modification::read_tensor(n) != params.tensor_sums.tensor) continue;
        const float term = language::through_slope(gradient.value, slopes[n]);
        scatter(sums, term == 0.0f ? -1 : places[n], term, lane);
      }
    }
  }
};

// The sums at `index`, of all rows that are theirs.
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE void compute_tensor_sums(const BackwardParams& params,
                                       const Modification& modification, long long index,
                                       uint32_t shared) {
  const TensorSums& of = params.tensor_sums;
  const int lane = ptx::thread_idx_x() % 32;
  double* sums = of.sums + index * of.num_elements;
  for (int n = lane; n < of.num_elements; n += 32) sums[n] = 0;
  ptx::syncwarp();
  if constexpr (Modification::kReads > 0) {
    const TensorRows<config, Modification> rows{params, modification, sums, lane, shared};
    for (long long n = index; n < params.num_rows; n += of.num_sums) {
      const CallRow call = CallRow::of(params, n);
      if (call.row < call.at.q.length) rows.add_row(call.at, call.row);
    }
  }
}

// An element of the gradient, by a warp.
SIRDAR_DEVICE void add_tensor_sums(const BackwardParams& params, long long element) {
  const TensorSums& of = params.tensor_sums;
  const int lane = ptx::thread_idx_x() % 32;
  double sum = 0;
  for (int n = lane; n < of.num_sums; n += 32) {
    sum += of.sums[static_cast<long long>(n) * of.num_elements + element];
  }
  sum = warp_sum(sum);
  long long rest = element, offset = 0;
  for (int axis = 3; axis >= 0; --axis) {
    offset += rest % of.shape[axis] * of.stride[axis];
    rest /= of.shape[axis];
  }
  if (lane == 0) of.gradient[offset] = static_cast<float>(sum);
}

}  // namespace sirdar::rows
