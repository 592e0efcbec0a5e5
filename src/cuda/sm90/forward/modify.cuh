// Scores and masks that are not the kernel's own, pair by pair.
#pragma once

#include "cuda/expression/modification.cuh"
#include "cuda/sm90/forward/softmax.cuh"
#include "cuda/sm90/forward/work.cuh"

namespace sirdar::sm90 {

// A launch with a modification: the kernel's parameters, then the modification's.
template <class Modification>
struct ModifiedParams {
  ForwardParams forward;
  Modification modification;
};

// A thread's two rows, `row` and row + 8, of a score tile; `key` is the lane's first column. The
// two are written as one and a constant, so that what depends on their distance to a key alone is
// computed once for both.
template <bool kHides, class Modification, int kCount>
SIRDAR_DEVICE void modify_scores(const Modification& modification, const WorkItem& item, int row,
                                 int key, float (&scores)[kCount]) {
  const int q_pos = row + item.seqlen_k - item.seqlen_q;
  const auto upper = modification.begin_row(item.batch, item.head, row, q_pos);
  const auto lower = modification.begin_row(item.batch, item.head, row + 8, q_pos + 8);
  SIRDAR_UNROLL
  for (int i = 0; i < kCount; ++i) {
    scores[i] = language::modified<kHides>(modification, is_lower_row(i) ? lower : upper, scores[i],
                                           key + column_of(i));
  }
}

}  // namespace sirdar::sm90
