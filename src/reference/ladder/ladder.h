// The ladder: attention from the naive softmax to FlashAttention-2, one short program a rung, each
// on the counted machine. One head, seqlen query rows and as many key rows. docs/ladder.md walks up
// it.
//
// Shapes: q, k, v, out and their gradients [seqlen, head_dim]; row statistics [seqlen];
// score matrices [seqlen, seqlen]; all row-major.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/ladder/machine.h"

namespace sirdar::ladder {

struct Head {
  int64_t seqlen = 0, head_dim = 0;
  float scale = 1;  // multiplies q k^T
};

// The arrays of the problem. A forward pass reads q, k, v and writes out; a backward pass reads
// these and dout and writes the rest.
struct Tensors {
  Slow q, k, v, out;
  Slow dout, dq, dk, dv;
};

// What a forward pass leaves for the backward pass: extra memory.
struct RowStatistics {
  Slow row_max, row_sum;  // [seqlen]
};

// The size of a score tile: block_m query rows by block_n key rows.
struct Blocks {
  int64_t block_m = 0, block_n = 0;
  bool operator==(const Blocks&) const = default;
};

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows [begin, end) of tile `index`.
struct RowRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
constexpr RowRange rows_of_tile(int64_t index, int64_t block, int64_t seqlen) {
  const int64_t end = (index + 1) * block;
  return {index * block, end < seqlen ? end : seqlen};
}

// Which score tiles are computed by the block-sparse rung.
struct TilePattern {
  int64_t tiles_m = 0, tiles_n = 0;
  std::vector<bool> visible;  // [tiles_m, tiles_n]

  bool at(int64_t tile_m, int64_t tile_n) const {
    return visible[static_cast<size_t>(tile_m * tiles_n + tile_n)];
  }
};

// S1-S3: softmax of one row, `size` scores at `offset` of both arrays, streamed from slow memory.
void naive_softmax(Machine& machine, const Slow& scores, Slow& weights, int64_t offset,
                   int64_t size);
void safe_softmax(Machine& machine, const Slow& scores, Slow& weights, int64_t offset,
                  int64_t size);
void online_softmax(Machine& machine, const Slow& scores, Slow& weights, int64_t offset,
                    int64_t size);

// S3's running state: the largest score so far and the sum of exp(score - row_max).
struct RowState {
  float row_max, row_sum;
};
RowState empty_row();  // the identity of merge
RowState merge(Machine& machine, RowState a, RowState b);

// S4: scores and weights in slow memory. Forward returns the weights [seqlen, seqlen].
Slow standard_forward(Machine& machine, const Head& head, Tensors& tensors);
void standard_backward(Machine& machine, const Head& head, const Slow& weights, Tensors& tensors);

// S5: FlashAttention-1 [Dao22 alg. 1].
RowStatistics flash1_forward(Machine& machine, const Head& head, const Blocks& blocks,
                             Tensors& tensors);

// S6: recomputation. Forward in two scans; backward [Dao22 alg. 4].
RowStatistics recompute_forward(Machine& machine, const Head& head, const Blocks& blocks,
                                Tensors& tensors);
void recompute_backward(Machine& machine, const Head& head, const Blocks& blocks,
                        const RowStatistics& saved, Tensors& tensors);

// S7: FlashAttention-1 over the visible tiles only [Dao22 alg. 5].
RowStatistics block_sparse_forward(Machine& machine, const Head& head, const Blocks& blocks,
                                   const TilePattern& pattern, Tensors& tensors);

// S8, S9: FlashAttention-2 forward [Dao23 alg. 1]; returns lse. Causal: row i sees keys 0..i.
Slow flash2_forward(Machine& machine, const Head& head, const Blocks& blocks, bool is_causal,
                    Tensors& tensors);
// S11: its backward [Dao23 alg. 2].
void flash2_backward(Machine& machine, const Head& head, const Blocks& blocks, const Slow& lse,
                     Tensors& tensors);

}  // namespace sirdar::ladder
