// The backward row by row: no tensor cores, no TMA, no atomic operation, nothing that a stride or
// an address must be. README.md has the plan. Device half; backward.cc fills the parameters.
// Launches in this order: query_rows, key_rows, where they are wanted bias_rows and term_sums, and
// for each tensor that wants a gradient tensor_sums and tensor_gradient. Behind a kernel that makes
// dq, dk and dv query_states and key_terms take the place of the first two.
#pragma once

#include "cuda/rows/backward/tensors.cuh"

namespace sirdar::rows {

// A launch with a modification: the kernel's parameters, then the modification's.
template <class Modification>
struct ModifiedBackwardParams {
  BackwardParams backward;
  Modification modification;
};

// Calls compute(index, shared) for every index below `count`, a warp each.
template <BackwardConfig config, class Compute>
SIRDAR_DEVICE void for_each_of_warp(long long count, const Compute& compute) {
  static_assert(is_valid(config));
  const int warp = ptx::uniform(ptx::thread_idx_x() / 32);
  const uint32_t shared =
      ptx::dynamic_shared() + static_cast<uint32_t>(warp * staged_bytes(config));
  const long long step = static_cast<long long>(kWarps) * ptx::grid_dim_x();
  long long index = static_cast<long long>(kWarps) * ptx::block_idx_x() + warp;
  for (; index < count; index += step) compute(index, shared);
}

template <BackwardConfig config, class Modification = language::NoModification>
SIRDAR_DEVICE void query_rows(const BackwardParams& params, const Modification& modification = {}) {
  for_each_of_warp<config>(params.num_rows, [&](long long index, uint32_t shared) {
    compute_query_row<config, true>(params, modification, index, shared);
  });
}
template <BackwardConfig config, class Modification = language::NoModification>
SIRDAR_DEVICE void key_rows(const BackwardParams& params, const Modification& modification = {}) {
  for_each_of_warp<config>(params.num_keys, [&](long long index, uint32_t shared) {
    compute_key_row<config, true>(params, modification, index, shared);
  });
}
template <BackwardConfig config, class Modification = language::NoModification>
SIRDAR_DEVICE void query_states(const BackwardParams& params,
                                const Modification& modification = {}) {
  for_each_of_warp<config>(params.num_rows, [&](long long index, uint32_t shared) {
    compute_query_row<config, false>(params, modification, index, shared);
  });
}
template <BackwardConfig config, class Modification = language::NoModification>
SIRDAR_DEVICE void key_terms(const BackwardParams& params, const Modification& modification = {}) {
  for_each_of_warp<config>(params.num_keys, [&](long long index, uint32_t shared) {
    compute_key_row<config, false>(params, modification, index, shared);
  });
}
template <BackwardConfig config, class Modification = language::NoModification>
SIRDAR_DEVICE void bias_rows(const BackwardParams& params, const Modification& modification = {}) {
  const long long count = static_cast<long long>(params.dbias.num_batches) *
                          params.dbias.num_heads * params.query.seqlen;
  for_each_of_warp<config>(count, [&](long long index, uint32_t shared) {
    compute_bias_row<config>(params, modification, index, shared);
  });
}

template <BackwardConfig config>
SIRDAR_DEVICE void term_sums(const BackwardParams& params) {
  add_terms(params, params.sink_sums);
  add_terms(params, params.bias_sums);
}

template <BackwardConfig config>
SIRDAR_DEVICE void tensor_gradient(const BackwardParams& params) {
  for_each_of_warp<config>(params.tensor_sums.num_elements,
                           [&](long long index, uint32_t) { add_tensor_sums(params, index); });
}

template <BackwardConfig config, class Modification>
SIRDAR_DEVICE void modified_tensor_sums(const ModifiedBackwardParams<Modification>& params) {
  const BackwardParams& own = params.backward;
  for_each_of_warp<config>(own.tensor_sums.num_sums, [&](long long index, uint32_t shared) {
    compute_tensor_sums<config>(own, params.modification, index, shared);
  });
}
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE void modified_query_rows(const ModifiedBackwardParams<Modification>& params) {
  query_rows<config>(params.backward, params.modification);
}
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE void modified_key_rows(const ModifiedBackwardParams<Modification>& params) {
  key_rows<config>(params.backward, params.modification);
}
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE void modified_bias_rows(const ModifiedBackwardParams<Modification>& params) {
  bias_rows<config>(params.backward, params.modification);
}

template <BackwardConfig config, class Modification>
SIRDAR_DEVICE void modified_query_states(const ModifiedBackwardParams<Modification>& params) {
  query_states<config>(params.backward, params.modification);
}
template <BackwardConfig config, class Modification>
SIRDAR_DEVICE void modified_key_terms(const ModifiedBackwardParams<Modification>& params) {
  key_terms<config>(params.backward, params.modification);
}

}  // namespace sirdar::rows
