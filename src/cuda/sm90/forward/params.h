// The run-time arguments of one launch of the Hopper forward, by value. The host half fills it.
#pragma once

#include "cuda/sm90/cover_view.h"
#include "cuda/sm90/divisor.h"
#include "cuda/sm90/forward/config.h"
#include "cuda/sm90/forward/soft_cap.h"
#include "cuda/sm90/views.h"
#include "shared/tensor_map.h"

namespace sirdar::sm90 {

// From which items are drawn: the next ticket, and blocks that have none left. Zeros before and
// after a launch.
struct alignas(32) Counters {
  int next, done;
};

// What the parts of split keys leave, in the workspace. A row of a head of the whole batch has an
// index, which is its sequence's first, plus its row's times num_heads, plus its head's.
struct PartsView {
  float* results;  // [split][index][head_dim_v]: sums of weights times values
  float* ends;     // [split][index][2]: what weights are relative to (log2 units), their sum
  long long stride_split, stride_batch;  // in indices
  int num_heads;
  int num_splits;
  Divisor by_splits;
};

// The last round, where its items are shared out (last_round.cuh).
struct LastRound {
  float* sums;        // a slot for each thread block
  int first_item;     // of the round; tickets from it on are shares, two for each thread block
  int num_items;      // of the round
  int num_blocks;     // key blocks of an item
  int share;          // of a thread block
  int grid;           // thread blocks
  Divisor by_blocks;  // by num_blocks
};

// That many of the kernel's own are the flags of one workspace's slots.
inline constexpr int kCountersPerWorkspace =
    kMostSlots * kSlotFlags * static_cast<int>(sizeof(int)) / static_cast<int>(sizeof(Counters));

struct ForwardParams {
  // Axes, fastest first: column, row, head, batch. Ragged tensors have one batch, and rows of all
  // sequences. Boxes: 64 columns by q_rows (q), block_n (k, v; in a
  // cluster half of it) or 64 (out) rows. With packed heads q and out are: column, head in its
  // pack, row, pack, batch, and a box of them has all heads of a pack.
  TensorMap q, k, v, out;
  RowView out_rows;                // for rows that leave by ordinary stores
  RowView q_rows, k_rows, v_rows;  // for results that are made again (exact.cuh)
  RowView lse, max_logit;          // fp32
  const float* sink;               // [num_heads_q], natural log units
  const float* alibi;              // slopes
  long long stride_alibi_batch, stride_alibi_head, stride_sink;
  IntView cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k;
  int* counter;                 // two zeros before and after, where `counters` is not the kernel's
  int num_heads, group_size;    // query heads, or packs of them; the same per K/V head
  int seqlen_q, seqlen_k;       // maxima where sequences have their own
  int num_blocks_m, num_items;  // query blocks (a cluster's count as one) of the longest sequence;
                                // of all sequences and heads, and parts of their keys
  int section_heads, num_sections;   // longest-first order within this many heads, that many times
  int last_heads;                    // and within those that are left
  int short_blocks;                  // query blocks of each head, the first, that come behind all
  int num_batch_heads, first_short;  // heads of all sequences; the first of their tickets
  Divisor by_blocks, by_section, by_section_heads, by_last_heads, by_batch_heads, by_heads,
      by_group;
  int window_left, window_right;  // keys besides the diagonal; causal: right is 0
  int chunk;
  int is_top_left;
  float scale_log2;  // softmax_scale * log2(e); with has_logits softmax_scale alone
  float softcap;
  CapFactors cap_factors;  // with a soft-cap
  CapTerms cap;
  BiasView bias;
  CoverView cover;
  int heads_per_pack;  // at most num_packed_heads; tile rows of heads beyond it are nobody's
  int counters;        // which of the kernel's own are the launch's; < 0: `counter`, or where that
                       // is null items are dealt out in turn
  TensorMap bias_map;  // key, row, head, batch; boxes of 64 x 64; with num_stages_bias
  PartsView parts;     // with is_split()
  LastRound last;      // with shares_last_round
};

// The divisors of the numbers above.
constexpr void add_divisors(ForwardParams& p) {
  const int heads = p.num_blocks_m > 0 ? p.num_items / p.num_blocks_m : 0;
  p.last_heads = heads - p.num_sections * p.section_heads;
  p.by_blocks = Divisor::of(p.num_blocks_m);
  p.num_batch_heads = heads;
  p.first_short = heads * (p.num_blocks_m - p.short_blocks);
  p.by_batch_heads = Divisor::of(heads);
  p.by_section = Divisor::of(p.section_heads * (p.num_blocks_m - p.short_blocks));
  p.by_section_heads = Divisor::of(p.section_heads);
  p.by_last_heads = Divisor::of(p.last_heads);
  p.by_heads = Divisor::of(p.num_heads);
  p.by_group = Divisor::of(p.group_size);
}

}  // namespace sirdar::sm90
