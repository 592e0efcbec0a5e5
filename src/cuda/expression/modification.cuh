// What a kernel does to scores besides its own terms, and which pairs it hides one by one: a struct
// of plain data that expression/emit_cuda.cc writes for one problem. Its members are
//
//   static constexpr bool kScores, kMasks;
//   struct Row;                                                what depends on the query alone
//   Row begin_row(int b, int h, int q, int q_pos) const;
//   struct Key;                                                and on the key alone
//   Key begin_key(int b, int h, int k) const;
//   float score(const Row&, const Key&, float score) const;    where kScores; natural-log units
//   bool visible(const Row&, const Key&) const;                where kMasks
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

}  // namespace sirdar::language
