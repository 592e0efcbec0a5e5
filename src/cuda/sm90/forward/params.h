// The run-time arguments of one launch of the Hopper forward, by value. The host half fills it.
#pragma once

#include "cuda/sm90/forward/soft_cap.h"
#include "cuda/sm90/views.h"
#include "shared/tensor_map.h"

namespace sirdar::sm90 {

// A bias as the kernel reads it. Strides in elements, 0 along the axes that it has not.
struct BiasView {
  const void* data;
  long long stride_batch, stride_head, stride_row, stride_key;
  int reads_pairs;  // two neighbouring keys may be read at once
};

// What a query block sees of 32 key blocks through masks that are expressions, ids or tensors.
struct alignas(16) CoverWord {
  unsigned some, all;  // of which blocks something may be visible, and of which all is
  int tiles_before;    // key blocks to the left of these that are seen in part
  int unused;
};

// Written before the forward by cover_keys(): a word per query block and 32 key blocks, and of the
// first `num_tiles` blocks of a query block that are seen in part what each row sees, a bit a pair:
// block_n / 32 words a row. Strides in query blocks.
struct CoverView {
  CoverWord* words;
  unsigned* tiles;
  int is_by_key;                                     // every key block has a tile at its own place
  long long stride_batch, stride_head;               // 0 where the mask does not differ
  int num_batches, num_heads, num_words, num_tiles;  // of different ones; of one query block
};

// Warps of one thread block of that kernel, which looks at one query block.
inline constexpr int kCoverWarps = 8;
// What each warp found, for one word and the one before.
inline constexpr int kCoverSharedBytes = 2 * kCoverWarps * 16;

struct ForwardParams {
  // Axes, fastest first: column, row, head, batch. Ragged tensors have one batch, and rows of all
  // sequences. Boxes: 64 columns by block_m (q), block_n (k, v; in a
  // cluster half of it) or 64 (out) rows.
  TensorMap q, k, v, out;
  RowView out_rows;                // for rows that leave by ordinary stores
  RowView q_rows, k_rows, v_rows;  // for results that are made again (exact.cuh)
  RowView lse, max_logit;          // fp32
  const float* sink;               // [num_heads_q], natural log units
  const float* alibi;              // slopes
  long long stride_alibi_batch, stride_alibi_head, stride_sink;
  IntView cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k;
  int* counter;                 // two zeros before and after; null: items are dealt out in turn
  int num_heads, group_size;    // query heads; query heads per K/V head
  int seqlen_q, seqlen_k;       // maxima where sequences have their own
  int num_blocks_m, num_items;  // query blocks (a cluster's count as one) of the longest sequence;
                                // of all sequences and heads
  int section_heads, num_sections;  // longest-first order within this many heads, that many times
  int window_left, window_right;    // keys besides the diagonal; causal: right is 0
  int chunk;
  int is_top_left;
  float scale_log2;  // softmax_scale * log2(e); with has_logits softmax_scale alone
  float softcap;
  CapTerms cap;  // with a soft-cap
  BiasView bias;
  CoverView cover;
  TensorMap bias_map;  // key, row, head, batch; boxes of 64 x 64; with num_stages_bias
};

}  // namespace sirdar::sm90
