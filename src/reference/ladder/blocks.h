// How large the tiles of each rung may be in a fast memory of M elements.
#pragma once

#include "reference/ladder/ladder.h"

namespace sirdar::ladder {

// Which rung's arrays are to fit.
enum class Tiling : uint8_t { flash1, flash2, recompute_backward, flash2_backward };

// Elements of fast memory that the rung holds at its peak with these blocks.
int64_t footprint(Tiling tiling, const Blocks& blocks, int64_t head_dim);

// [Dao22 alg. 1]'s sizes taken at its word: block_n = ceil(M / 4 head_dim) and
// block_m = min(block_n, head_dim), cut to seqlen.
Blocks article_blocks(const Head& head, int64_t fast_elements);

// The largest sizes of that form whose footprint fits. The word's own sizes fill M with the tiles
// of Q, K, V and O and leave no room for the scores, so these are somewhat smaller.
// FlashAttention-2 and the first rung of recomputation loop the other way round and swap the two
// sizes. {0, 0} if not even one row by one row fits.
Blocks fitting_blocks(Tiling tiling, const Head& head, int64_t fast_elements);

// Rows of one operand that the standard rung's products hold: all that fit beside one row of the
// other. At least 1; the machine refuses if even that is too much.
int64_t rows_held(int64_t seqlen, int64_t head_dim, int64_t fast_elements);

}  // namespace sirdar::ladder
