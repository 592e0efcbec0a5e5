// The run-time arguments of the launches of one row-by-row backward, by value. The host half fills
// them; all launches of a call are given the same.
#pragma once

#include "cuda/rows/forward/params.h"

namespace sirdar::rows {

// What is known of a query row before it meets a key: a weight is weight * exp(logit - base). A row
// that takes no part has base = +inf.
struct alignas(16) QueryState {
  float base, weight, delta;
  float sink;  // what it adds to dsink
};

// Numbers of rows, `stride` floats apart, [num_heads_q][rows of all sequences], that are added up
// into a gradient over [batch|1, num_heads_q|1, rows|1].
struct TermSums {
  const float* terms;
  long long stride;
  float* gradient;  // null: there is nothing to add up
  int num_batches, num_heads, num_rows;
  long long stride_batch, stride_head, stride_row;
  int are_keys;  // the rows; otherwise they are queries
};

// dbias over [batch|1, num_heads_q|1, seqlen_q, seqlen_k].
struct PairSums {
  float* gradient;
  int num_batches, num_heads;
  long long stride_batch, stride_head, stride_row, stride_key;
};

// The gradient of one tensor that a score_mod reads.
struct TensorSums {
  double* sums;  // [num_sums][num_elements]: what some of the query rows add up
  float* gradient;
  int num_sums, num_elements;
  int tensor;  // its place among the modification's
  int shape[4];
  long long stride[4];  // of the gradient
};

struct BackwardParams {
  const void *q, *k, *v, *out, *dout;
  void *dq, *dk, *dv;
  const float *lse, *dlse;  // dlse null: none
  RowMap q_rows, k_rows, v_rows, out_rows, dout_rows, dq_rows, dk_rows, dv_rows;
  RowMap lse_rows, dlse_rows;
  Extents query, key;
  // Of the rows whose addresses are multiples of 16 bytes; and of a lane's neighbouring columns,
  // where rows are added up.
  int reads_q_vectors, reads_k_vectors, reads_v_vectors, reads_dout_vectors;
  int adds_q_vectors, adds_k_vectors, adds_dout_vectors;
  int head_dim, head_dim_v;
  int batch, num_heads, num_heads_kv, group_size;  // query heads per K/V head
  long long num_rows;                              // batch * num_heads * query.seqlen
  long long num_keys;                              // batch * num_heads_kv * key.seqlen

  StructuredMask mask;  // without its length and shifts, which are the sequence's
  int is_top_left;

  float scale, softcap;  // softcap 0: off
  PairView bias;
  const float* alibi;  // slopes; null: none
  const float* sink;   // [num_heads_q]; null: none
  long long stride_alibi_batch, stride_alibi_head, stride_sink;
  Dropout dropout;
  float keep_scale;

  // Working memory: [num_heads_q][rows of all sequences].
  QueryState* states;
  long long rows_of_head, keys_of_head;
  // What each query row (of all its keys) or key (of all its queries) adds to dbias; null: neither.
  float *bias_of_rows, *bias_of_keys;
  PairSums dbias;      // of a bias that has both positions
  TermSums bias_sums;  // of any other
  TermSums sink_sums;
  TensorSums tensor_sums;
};

}  // namespace sirdar::rows
