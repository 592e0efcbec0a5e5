// One backward call: the problem, the caller's memory as plain structs, and the working memory.
#pragma once

#include <sirdar/plan.hpp>

#include <algorithm>

#include "cpu/backward_config.h"
#include "cpu/forward_call.h"
#include "cpu/microkernel_backward.h"
#include "cpu/scratch.h"
#include "cpu/tensor_gradients.h"
#include "shared/mask.h"

namespace sirdar::cpu {

// Sizes of everything in panels (microkernel_backward.h). Strides between panels are a cache line
// longer than a panel, or all panels of a row would start in the same set of the cache.
struct BackwardShape {
  int width = 0, block_m = 0, block_n = 0, range_n = 0;
  int head_dim = 0, head_dim_v = 0;
  bool has_softcap = false, has_dropout = false, needs_dbias = false;
  bool sums_dbias_over_keys = false;
  bool has_score_mod = false, needs_dtensors = false;
  int64_t num_reads = 0;  // of elements of tensors that want a gradient
  TileShape terms;        // of the part of the forward's scratch that logit terms use

  int num_panels() const { return block_m / width; }
  int panels_of(int columns) const { return (columns + width - 1) / width; }
  int64_t key_stride() const { return int64_t{range_n} * width + 16; }
  int64_t query_stride() const { return int64_t{block_m} * width + 16; }
  int64_t score_stride() const { return int64_t{block_n} * width + 16; }
  // Sums of one read: per query, key or distance of a tile and a block, and a vector more.
  int64_t term_stride() const { return block_m + block_n + width; }
  int64_t dq_size() const { return panels_of(head_dim) * query_stride(); }
  // Sums of dq that a tile may have of one range, by keys_per_sum() of any sequence.
  int64_t most_sums() const {
    const int64_t blocks = range_n / block_n;
    return std::max(std::min<int64_t>(blocks, 16), (blocks + 7) / 8);
  }
};

// The rows of a query tile. Transposed: [query panel][column][width], else [column
// panel][row][width].
struct TilePanels {
  float *q_transposed, *dout_transposed, *q, *dout, *dq;
  bool is_finite = false;  // q and dout

  TilePanels(Carver& carver, const BackwardShape& shape) {
    const int64_t d = shape.panels_of(shape.head_dim),
                  value_panels = shape.panels_of(shape.head_dim_v);
    q_transposed = carver.take<float>(int64_t{shape.block_m} * shape.head_dim);
    dout_transposed = carver.take<float>(int64_t{shape.block_m} * shape.head_dim_v);
    q = carver.take<float>(d * shape.query_stride());
    dout = carver.take<float>(value_panels * shape.query_stride());
    dq = carver.take<float>(shape.dq_size());
  }
};

// Keys of a block that a panel computes: a multiple of `width` into it, up to another or its end.
struct PanelPart {
  Range keys;
  Cover cover = Cover::none;
};

// The working memory of a slot.
struct BackwardScratch {
  Scratch terms;  // lanes, masks and bias, as the forward keeps them; no panels of rows
  // Of a key range: [column panel][row][width].
  float *k, *v, *dk, *dv;
  int32_t* k_is_finite;                // [blocks of the range]
  TilePanels tile;                     // the one at work
  float* dq_terms;                     // of the tile at work: sums of runs of keys, [run]
  PanelPart* parts;                    // [query panel] of the block at work
  const void **dout_rows, **out_rows;  // [block_m]
  float *base, *weight, *delta;        // [block_m]
  float *q_row, *dout_row, *k_row;     // one row as floats
  // Of a tile and a block: [query panel][key][width].
  float *weights, *gradients;
  // [key][width], of one query panel.
  float *slope, *keep, *dlogit;
  float *mod_slope, *mod_input, *dvalue;  // of a score_mod, what it is given, and its gradient
  float *terms_of_strip, *term_sums;      // of what tensors' elements get: a strip's, and sums

  BackwardScratch(Carver& carver, const BackwardShape& shape)
      : terms(carver, shape.terms), tile(carver, shape) {
    const int64_t d = shape.panels_of(shape.head_dim),
                  dv_panels = shape.panels_of(shape.head_dim_v);
    const int64_t block = int64_t{shape.block_n} * shape.width;
    k = carver.take<float>(d * shape.key_stride());
    v = carver.take<float>(dv_panels * shape.key_stride());
    dk = carver.take<float>(d * shape.key_stride());
    dv = carver.take<float>(dv_panels * shape.key_stride());
    k_is_finite = carver.take<int32_t>(shape.range_n / shape.block_n);
    dq_terms = carver.take<float>(shape.most_sums() * shape.dq_size());
    parts = carver.take<PanelPart>(shape.num_panels());
    dout_rows = carver.take<const void*>(shape.block_m);
    out_rows = carver.take<const void*>(shape.block_m);
    base = carver.take<float>(shape.block_m);
    weight = carver.take<float>(shape.block_m);
    delta = carver.take<float>(shape.block_m);
    q_row = carver.take<float>(shape.head_dim + shape.width);
    dout_row = carver.take<float>(shape.head_dim_v + shape.width);
    k_row = carver.take<float>(shape.head_dim + shape.width);
    weights = carver.take<float>(shape.num_panels() * shape.score_stride());
    gradients = carver.take<float>(shape.num_panels() * shape.score_stride());
    slope = carver.take<float>(shape.has_softcap ? block : 0);
    keep = carver.take<float>(shape.has_dropout ? block : 0);
    dlogit = carver.take<float>(shape.needs_dbias ? block : 0);
    mod_slope = carver.take<float>(shape.has_score_mod ? block : 0);
    mod_input = carver.take<float>(shape.needs_dtensors ? block : 0);
    dvalue = carver.take<float>(shape.needs_dtensors ? block : 0);
    terms_of_strip =
        carver.take<float>(shape.needs_dtensors ? int64_t{3} * kStripKeys * shape.width : 0);
    term_sums = carver.take<float>(shape.num_reads * shape.term_stride());
  }
};

// What the backward pass knows of each query row before it meets a key: a weight is
// weight * exp(logit - base). Rows that take no part have base = +inf.
struct RowStates {
  float *base = nullptr, *weight = nullptr, *delta = nullptr;  // [num_heads_q][rows]
  double* dsink = nullptr;  // [batch][num_heads_q][tile]: each tile's part
  int64_t rows = 0;         // of all sequences together

  // Where row i of sequence b lies.
  int64_t at(const Problem& problem, int64_t b, const Sequence& q, int64_t h, int64_t i) const {
    const bool is_ragged = problem.layout_q == Layout::ragged;
    return h * rows + (is_ragged ? q.begin : b * problem.seqlen_q) + i;
  }
};

// A gradient of rows. It is added up item by item in the caller's memory where that is fp32, else
// in working memory, until the last item rounds the sum; where one item makes the whole sum,
// nowhere.
struct GradientSum {
  void* data = nullptr;
  RowMap map;
  float* sums = nullptr;  // [head][row][column]; null: none in working memory
  RowMap sums_map;
};

// dbias as it is added to; strides are 0 along axes that are summed over. A bias broadcast along
// queries and keys is summed per key first, in working memory.
struct BiasGradient {
  float* data = nullptr;
  int64_t stride_batch = 0, stride_head = 0, stride_query = 0, stride_key = 0;
};

BackwardShape backward_shape(const Problem& problem, const BackwardConfig& config,
                             const Expressions* expressions);

struct BackwardCall {
  const Problem& problem;
  const BackwardConfig& config;
  const Args& args;
  const MicroKernels& kernels;
  const BackwardKernels& backward;
  BackwardShape shape;
  ForwardConfig forward_config;
  ForwardCall forward;  // what logit terms are read through
  RowMap out, dout, lse, dlse;
  GradientSum dq, dk, dv;
  RowStates rows;
  BiasGradient dbias;
  TensorGradients dtensors;

  // `expressions` are those of the problem, null where it has none; what they read lies at the
  // start of the workspace.
  BackwardCall(const Problem& problem, const BackwardConfig& config, const Args& args,
               const Expressions* expressions);
  int64_t query_tiles() const { return (problem.seqlen_q + shape.block_m - 1) / shape.block_m; }
};

// A row of the caller's.
inline void* row_at(const TensorView& view, const RowMap& map, int64_t b, const Sequence& sequence,
                    int64_t row, int64_t head) {
  return static_cast<std::byte*>(view.data) +
         map.offset(b, sequence, row, head) * size_bytes(view.dtype);
}

// An element of lse or dlse.
inline float statistic_at(const TensorView& view, const RowMap& map, int64_t b,
                          const Sequence& sequence, int64_t row, int64_t head) {
  return static_cast<const float*>(view.data)[map.offset(b, sequence, row, head)];
}

}  // namespace sirdar::cpu
