// Structured masks as intervals: of keys that a row sees, and of rows that a key is seen by.
// Nothing here is larger than 2^30, so that sums of two fit.
#pragma once

#include "cuda/sm90/tile.h"
#include "cuda/sm90/views.h"
#include "ptx/base.cuh"
#include "ptx/math.cuh"

namespace sirdar::sm90 {

// Params: window_left, window_right, chunk, is_top_left.
// Rows see keys lo(row) <= k < hi(row), keys are seen by row_begin(key) <= row < row_end(key). All
// four never decrease.
template <MaskForm mask, class Params>
struct MaskBounds {
  const Params& params;
  int shift, seqlen_q, seqlen_k;  // diagonal: row + shift

  SIRDAR_DEVICE MaskBounds(const Params& p, int length_q, int length_k)
      : params(p),
        shift(p.is_top_left ? 0 : length_k - length_q),
        seqlen_q(length_q),
        seqlen_k(length_k) {}

  SIRDAR_DEVICE int chunk_of(int position) const {  // where it begins
    const int size = params.chunk;
    const int rest = position % size;
    return position - (rest < 0 ? rest + size : rest);
  }
  SIRDAR_DEVICE int lo(int row) const {
    if constexpr (mask != MaskForm::interval) return 0;
    int bound = params.window_left < kNoBound ? row + shift - params.window_left : 0;
    if (params.chunk < kNoBound) bound = ptx::max_of(bound, chunk_of(row + shift));
    return ptx::max_of(bound, 0);
  }
  SIRDAR_DEVICE int hi(int row) const {
    if constexpr (mask == MaskForm::full) return seqlen_k;
    int bound = seqlen_k;
    if (params.window_right < kNoBound) {
      bound = ptx::min_of(bound, row + shift + params.window_right + 1);
    }
    if constexpr (mask == MaskForm::interval) {
      if (params.chunk < kNoBound) bound = ptx::min_of(bound, chunk_of(row + shift) + params.chunk);
    }
    return bound;
  }
  SIRDAR_DEVICE int row_begin(int key) const {
    if constexpr (mask == MaskForm::full) return 0;
    int bound = params.window_right < kNoBound ? key - shift - params.window_right : 0;
    if constexpr (mask == MaskForm::interval) {
      if (params.chunk < kNoBound) bound = ptx::max_of(bound, chunk_of(key) - shift);
    }
    return ptx::max_of(bound, 0);
  }
  SIRDAR_DEVICE int row_end(int key) const {
    if constexpr (mask != MaskForm::interval) return seqlen_q;
    int bound = seqlen_q;
    if (params.window_left < kNoBound) {
      bound = ptx::min_of(bound, key - shift + params.window_left + 1);
    }
    if (params.chunk < kNoBound) {
      bound = ptx::min_of(bound, chunk_of(key) + params.chunk - shift);
    }
    return bound;
  }
};

}  // namespace sirdar::sm90
