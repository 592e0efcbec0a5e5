// What each rung should cost, in closed form: written from the algorithms on paper and compared
// with what the machine counted. Nothing here is used by the programs themselves.
//
// In the texts: N seqlen, d head_dim, M elements of fast memory, Tm and Tn tiles along the queries
// and along the keys. Sums over tiles appear where a mask or pattern leaves some out:
//   A  score elements computed,  R  query rows visited,  K  key rows loaded.
#pragma once

#include <cstdint>
#include <string>

#include "reference/ladder/ladder.h"

namespace sirdar::ladder {

struct Formula {
  std::string text;
  int64_t value = 0;
};

struct Prediction {
  Formula matmul_flops, other_flops, exps;
  Formula read, written;  // elements of slow memory
  Formula extra;          // elements of slow memory beyond inputs and outputs, at the peak
};

enum class Softmax : uint8_t { naive, safe, online };
Prediction predict_softmax(Softmax kind, int64_t rows, int64_t size);

Prediction predict_standard_forward(const Head& head, int64_t fast_elements);
Prediction predict_standard_backward(const Head& head, int64_t fast_elements);
Prediction predict_flash1(const Head& head, const Blocks& blocks);
Prediction predict_block_sparse(const Head& head, const Blocks& blocks, const TilePattern& pattern);
Prediction predict_recompute_forward(const Head& head, const Blocks& blocks);
Prediction predict_recompute_backward(const Head& head, const Blocks& blocks);
Prediction predict_flash2(const Head& head, const Blocks& blocks);
Prediction predict_flash2_causal(const Head& head, const Blocks& blocks);
Prediction predict_flash2_backward(const Head& head, const Blocks& blocks);

// Score elements in the tiles that a causal mask leaves, and the tiles that its diagonal crosses.
int64_t causal_elements(const Head& head, const Blocks& blocks);
int64_t causal_masked_tiles(const Head& head, const Blocks& blocks);

// Score elements in the visible tiles of a pattern.
int64_t pattern_elements(const Head& head, const Blocks& blocks, const TilePattern& pattern);

}  // namespace sirdar::ladder
