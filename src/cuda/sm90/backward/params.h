// The run-time arguments of one backward pass, by value: its three kernels take the same. The host
// half fills them.
#pragma once

#include "cuda/sm90/cover_view.h"
#include "cuda/sm90/views.h"
#include "shared/tensor_map.h"

namespace sirdar::sm90 {

// Of which of 32 query tiles the halves of a key block are seen, and of which by every row, all
// masks together, where some are expressions, ids or tensors. Blocks of 64 keys have one half.
struct alignas(16) WalkWord {
  unsigned some[2], all[2];
};

// Of the query tiles that a key block walks the first, the one behind the last, and their number.
struct alignas(16) WalkSpan {
  int begin, end, count, unused;
};

// Working memory of those masks; lists are those of sequences and heads that they differ for.
struct WalkView {
  CoverView cover;  // by query tile and 64 keys, as forward/cover.cuh writes it
  WalkWord* walks;  // [list][num_blocks_n][1 + num_words], by key block; the first is a WalkSpan
  // [list][64 keys][num_tiles][key][block_m / 32]: of a tile that is seen in part which rows see a
  // key. Such tiles of those keys in their order, or each at its own place (cover.is_by_key).
  unsigned* tiles;
  int num_words, num_tiles, num_halves;  // of a key block; of 64 keys; 64 keys of a sequence
  int list_of_batch, list_of_head;       // strides of lists, 0 where the masks do not differ
};

// Of a query row: a logit's weight is `weight` times exp(logit - base).
struct RowLevel {
  double base;
  float weight;
};

struct BackwardParams {
  // Axes, fastest first: column, row, head, batch. Boxes: 64 columns by block_m (q, dout), 128
  // (k, v) or 64 (dk, dv) rows.
  TensorMap q, k, v, dout, dk, dv;
  TensorMap bias_map;  // with num_stages_bias; axes: key, query, head, batch
  RowView out_rows, dout_rows, dq_rows;
  RowView dk_rows, dv_rows;  // for tiles that a sequence ends in
  RowView lse, dlse;         // fp32; dlse null where there is none
  IntView cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k;
  // Workspace. A tile has block_m rows; rows that do not exist have a weight of 0. Sequence b's
  // tiles begin at b num_tiles, or at cu_seqlens_q[b] / block_m + b where queries are ragged.
  float* start_lse;  // [num_heads][total_tiles][block_m]: -lse / scale; with has_slopes -lse log2e
  float* start_delta;  // the same: -delta
  RowLevel* levels;    // the same, with has_levels: of rows whose lse is far from 0
  // [num_heads][total_tiles][sum][unit][64 * 64], units in the order of accumulators: thread t's
  // registers 4 k to 4 k + 3 at 512 k + 4 t.
  float* dq_sum;
  int* turns;  // [num_heads][total_tiles][sum][part]: key blocks that have been added; null: any
  int* items_drawn;  // how many, where they are drawn
  int batch, num_heads, num_heads_kv, group_size;
  int seqlen_q, seqlen_k;       // maxima where sequences have their own
  int num_tiles, num_blocks_n;  // of queries, of keys of the longest sequence
  int total_tiles, num_items;   // of queries of all sequences; of keys, and of all K/V heads
  // Sequences, or with has_chunks chunks of all of them, of which num_blocks_n is then; query tiles
  // of one; chunks of a sequence, and the rows of one.
  int num_walked, walked_tiles, num_chunks, chunk_rows;
  int section_heads, num_sections;  // K/V heads that are walked together, and how often
  int first_mirrored;               // section, with mirrors_tail
  // Fixed order without a mask: this many neighbouring key blocks of a head begin at query tiles
  // apart and run at one time; a head has so many rings, one after the other.
  int ring_blocks, num_rings;
  int window_left, window_right;  // keys besides the diagonal; causal: right is 0
  int chunk;
  int is_top_left;
  float scale, scale_log2;  // softmax_scale; times log2(e)
  float inverse_scale;
  float hidden;  // the score of a pair that is not seen: its weight is 0
  float softcap, softcap_factor, softcap_slope;  // itself; scale / softcap; -1 / softcap^2
  const float* alibi;                            // slopes
  long long stride_alibi_batch, stride_alibi_head;
  BiasView bias;
  const float* sink;  // [num_heads], natural log units
  float* dsink;       // null: not wanted
  long long stride_sink, stride_dsink;
  WalkView walk;                   // with has_mask_mod
  RowView q_rows, k_rows, v_rows;  // for what is made again
  // [num_items][8]: keys whose gradients are not finite, a word for sixteen (lost.cuh); of
  // blocks of 64 keys first by dV, then by dK.
  unsigned* lost;
  int* peaks;  // fp16: [num_heads][total_tiles][block_m / 32][2], of dO and delta (peaks.cuh)
  // With has_levels: [num_heads][total_tiles][block_m / 32], rows whose lse is far from 0 and that
  // give something.
  unsigned* far_rows;
};

}  // namespace sirdar::sm90
