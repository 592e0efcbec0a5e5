// Panels of few queries, as in decoding: what they cost is the reading of K and V, so rows are used
// where they lie, and asked for in one stream: K and then V of a block, K of the next.
#include <algorithm>

#include "core/geometry.h"
#include "cpu/forward_tile.h"

namespace sirdar::cpu {
namespace {

// Far enough ahead that memory is busy while weights are computed; further, and the addresses of
// pages would be forgotten before they are used.
constexpr int64_t kBytesAhead = int64_t{32} << 10;

}  // namespace

// For each of `keys` the row to ask for: some kBytesAhead further down, or of those that come
// `then`.
Prefetch Tile::narrow_ahead(const void* const* rows, Range keys, const void* const* then,
                            int64_t num_then, int64_t columns) const {
  const int64_t bytes = columns * call_.input_bytes;
  const int64_t ahead = min_of(keys.size(), kBytesAhead / bytes), own = keys.size() - ahead;
  const int64_t others = min_of(ahead, num_then);
  std::copy_n(rows + ahead, own, scratch_.rows_ahead);
  std::copy_n(then, others, scratch_.rows_ahead + own);
  return {scratch_.rows_ahead, static_cast<int>(own + others), static_cast<int>(bytes)};
}

void Tile::run_narrow(const Panel& panel, const Block& block, Range keys, Cover cover,
                      const AccumulatorState& state) {
  const MicroKernels& kernels = call_.kernels;
  const int num_keys = static_cast<int>(keys.size());
  const int64_t first = keys.begin - block.keys.begin;
  const bool is_last = &block == blocks_ + num_blocks_ - 1;
  const void* const* next_k = is_last ? scratch_.keys_next.k : (&block + 1)->k;
  const int64_t num_next =
      is_last ? scratch_.keys_next.end - scratch_.keys_next.begin : (&block + 1)->keys.size();
  // Whatever looks at pairs expects them along the lanes, and so do products of two at a time.
  const bool has_pairs =
      has_terms() || cover == Cover::part || call_.shape.has_dropout || call_.shape.per_word != 1;
  const int64_t lanes = kernels.lanes;
  const int64_t stride = has_pairs ? 0 : (num_keys + lanes - 1) / lanes * lanes;
  call_.products.narrow_qk({.k_rows = block.k + first,
                            .q = queries_of(panel),
                            .scores = scratch_.scores,
                            .stride = stride,
                            .max_in = state.row_max,
                            .max_out = scratch_.new_max,
                            .scale = call_.scale,
                            .num_keys = num_keys,
                            .head_dim = call_.shape.head_dim,
                            .num_lanes = panel.num_lanes,
                            .width = panel.width,
                            .next = narrow_ahead(block.k + first, keys, block.v + first, num_keys,
                                                 call_.shape.head_dim)});
  if (has_pairs) {
    if (has_terms() || cover == Cover::part)
      apply_logits(panel, block, keys, keys, cover, state.row_max);
    make_weights(panel, keys, 1, state);
  } else {
    kernels.narrow_softmax({.scores = scratch_.scores,
                            .stride = stride,
                            .max_in = state.row_max,
                            .max_out = scratch_.new_max,
                            .row_sum = state.row_sum,
                            .alpha = scratch_.alpha,
                            .num_keys = num_keys,
                            .num_lanes = panel.num_lanes,
                            .width = panel.width});
  }
  call_.products.narrow_pv(
      {.v_rows = block.v + first,
       .p = scratch_.scores,
       .key_stride = has_pairs ? panel.width : 1,
       .lane_stride = has_pairs ? 1 : stride,
       .alpha = scratch_.alpha,
       .out = state.out,
       .acc = scratch_.narrow_acc,
       .is_first = *state.has_keys == 0,
       .num_keys = num_keys,
       .head_dim_v = call_.shape.head_dim_v,
       .num_lanes = panel.num_lanes,
       .width = panel.width,
       .next = narrow_ahead(block.v + first, keys, next_k, num_next, call_.shape.head_dim_v)});
}

}  // namespace sirdar::cpu
