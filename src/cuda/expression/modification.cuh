// What a kernel does to scores besides its own terms, and which pairs it hides one by one: a struct
// of plain data that expression/emit_cuda.cc writes for one problem. Its members are
//
//   static constexpr bool kScores, kMasks;
//   struct Row;                                                what depends on the query alone
//   Row begin_row(int b, int h, int q, int q_pos) const;
//   struct Key;                                                and on the key alone
//   Key begin_key(int b, int h, int k) const;
//   float score(const Row&, const Key&, float score) const;    where kScores; natural-log units
//   float slope(const Row&, const Key&, float score) const;    of score(), in a backward pass
//   static constexpr int kReads;                               and where tensors want gradients:
//   static constexpr int read_tensor(int read);
//   void reads(const Row&, const Key&, float score, int* places, float* slopes) const;
//   bool visible(const Row&, const Key&) const;                where kMasks
//   struct RowBounds;                                          and the same over a box:
//   RowBounds begin_row_bounds(const Box&) const;
//   Truth visible_bounds(const RowBounds&, const Box&) const;
//
// b is the sequence, h the query head; q and k are positions in the sequence, and may lie past its
// end: nothing is read out of bounds. A slope of -0 says that the value does not depend on the
// score there: its product with anything is 0 (expression/slope.h). reads() gives, of each read of
// a tensor that wants a gradient, the element's place in it, row by row, and the slope by what was
// read; read_tensor() says which of `tensors` that is.
#pragma once

#include "cuda/expression/bounds.cuh"

namespace sirdar::language {

struct NoModification {
  static constexpr bool kScores = false, kMasks = false;
};

// What a gradient becomes on its way back through a slope: 0 stays 0, and -0 passes nothing on.
SIRDAR_DEVICE float through_slope(float gradient, float slope) {
  const bool stops = gradient == 0.0f || ptx::bits_of(slope) == 0x80000000u;
  return stops ? 0.0f : gradient * slope;
}

}  // namespace sirdar::language
