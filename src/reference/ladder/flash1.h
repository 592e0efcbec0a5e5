// The step that FlashAttention-1 and its block-sparse form share.
#pragma once

#include <utility>

#include "reference/ladder/ladder.h"

namespace sirdar::ladder {

// Holds one K/V tile and lets query blocks pass. out, row_max and row_sum live in slow memory and
// are read and rewritten at every step. invariant: between steps, out is the normalised attention
// over the key tiles seen so far.
class Flash1 {
 public:
  Flash1(Machine& machine, const Head& head, const Blocks& blocks, Tensors& tensors);

  void load_keys(int64_t tile_n);
  void update(int64_t tile_m);  // one query block against the K/V tile that is held
  RowStatistics take_statistics() { return std::move(statistics_); }

 private:
  void initialise_slow_memory();
  void update_row(int64_t row);

  Machine& machine_;
  const Head& head_;
  const Blocks& blocks_;
  Tensors& tensors_;
  RowStatistics statistics_;
  RowRange keys_;
  Fast q_, out_, k_, v_, scores_, row_max_, row_sum_, weighted_values_;
};

}  // namespace sirdar::ladder
