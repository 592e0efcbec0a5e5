// The rows of one sequence of a batch, on one side.
#pragma once

#include "cuda/sm90/views.h"
#include "ptx/base.cuh"

namespace sirdar::sm90 {

struct Rows {
  int begin = 0;   // in a ragged tensor
  int length = 0;  // that take part
};

// kHasLengths: lengths differ by sequence.
template <bool kHasLengths>
SIRDAR_DEVICE Rows rows_in(const IntView& cu_seqlens, const IntView& seqused, int seqlen,
                           int batch) {
  Rows rows{0, seqlen};
  if constexpr (kHasLengths) {
    if (cu_seqlens.data != nullptr) {
      rows.begin = cu_seqlens.data[batch * cu_seqlens.stride];
      rows.length = cu_seqlens.data[(batch + 1) * cu_seqlens.stride] - rows.begin;
    }
    if (seqused.data != nullptr) rows.length = seqused.data[batch * seqused.stride];
  }
  return rows;
}

// How many there are, used or not.
template <bool kHasLengths>
SIRDAR_DEVICE int rows_there(const IntView& cu_seqlens, int seqlen, int batch) {
  return rows_in<kHasLengths>(cu_seqlens, {nullptr, 0}, seqlen, batch).length;
}

}  // namespace sirdar::sm90
