// The run-time arguments of one launch of the row-by-row forward, by value. The host half fills it.
#pragma once

#include "shared/extents.h"
#include "shared/mask.h"
#include "shared/philox.h"

namespace sirdar::rows {

// A tensor over [batch, num_heads_q, seqlen_q, seqlen_k]. Strides in elements, 0 along the axes
// that it has not.
struct PairView {
  const void* data;
  long long stride_batch, stride_head, stride_row, stride_key;
};

struct ForwardParams {
  const void *q, *k, *v;
  void* out;
  float *lse, *max_logit;  // null: not wanted
  RowMap q_rows, k_rows, v_rows, out_rows, lse_rows, max_logit_rows;
  Extents query, key;
  // Of the rows whose addresses are multiples of 16 bytes (k), of a lane's neighbouring columns
  // (v).
  int reads_k_vectors, reads_v_vectors;
  int head_dim, head_dim_v;
  int num_heads_kv, group_size;  // query heads per K/V head
  long long num_rows;            // batch * num_heads_q * query.seqlen

  StructuredMask mask;  // without its length and shifts, which are the sequence's
  int is_top_left;

  float scale, softcap;  // softcap 0: off
  PairView bias;
  const float* alibi;  // slopes; null: none
  const float* sink;   // [num_heads_q]; null: none
  long long stride_alibi_batch, stride_alibi_head, stride_sink;
  Dropout dropout;
  float keep_scale;
};

}  // namespace sirdar::rows
