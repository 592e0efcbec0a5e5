// What a kernel does to scores besides its own terms, and which pairs it hides one by one: a struct
// of plain data that expression/emit_cuda.cc writes for one problem. Its members are
//
//   static constexpr bool kScores, kMasks;
//   struct Row;                                                what depends on the query alone
//   Row begin_row(int b, int h, int q, int q_pos) const;
//   float score(const Row&, float score, int k) const;         where kScores; natural-log units
//   bool visible(const Row&, int k) const;                     where kMasks
//   struct RowBounds;                                          and the same over a box:
//   RowBounds begin_row_bounds(const Box&) const;
//   Truth visible_bounds(const RowBounds&, const Box&) const;
//
// b is the sequence, h the query head; q and k are positions in the sequence, and may lie past its
// end: nothing is read out of bounds.
#pragma once

#include "cuda/expression/bounds.cuh"

namespace sirdar::language {

struct NoModification {
  static constexpr bool kScores = false, kMasks = false;
};

// The logit of one pair; -inf where it is hidden. Nothing is hidden where the caller knows so.
template <bool kHides, class Modification>
SIRDAR_DEVICE float modified(const Modification& modification,
                             const typename Modification::Row& row, float score, int k) {
  float logit = score;
  if constexpr (Modification::kScores) logit = modification.score(row, score, k);
  if constexpr (kHides && Modification::kMasks)
    logit = modification.visible(row, k) ? logit : -kInfinity;
  return logit;
}

}  // namespace sirdar::language
