#include "reference/ladder/blocks.h"

#include <algorithm>

namespace sirdar::ladder {

int64_t footprint(Tiling tiling, const Blocks& blocks, int64_t head_dim) {
  const auto [m, n] = blocks;
  switch (tiling) {
    case Tiling::flash1:  // Q, O, K, V, S, row_max and row_sum, one row of P V
      return 2 * m * head_dim + 2 * n * head_dim + m * n + 2 * m + head_dim;
    case Tiling::flash2:  // Q, O, K, V, S, row_max and row_sum
      return 2 * m * head_dim + 2 * n * head_dim + m * n + 2 * m;
    case Tiling::recompute_backward:  // Q, O, dO, dQ, K, V, dK, dV, P, dS, row_max and row_sum
      return 4 * m * head_dim + 4 * n * head_dim + 2 * m * n + 2 * m;
    case Tiling::flash2_backward:  // Q, dO, dQ, K, V, dK, dV, P, dS, lse and delta
      return 3 * m * head_dim + 4 * n * head_dim + 2 * m * n + 2 * m;
  }
  return 0;
}

Blocks article_blocks(const Head& head, int64_t fast_elements) {
  const int64_t block_n = ceil_div(fast_elements, 4 * head.head_dim);
  return {std::min({block_n, head.head_dim, head.seqlen}), std::min(block_n, head.seqlen)};
}

Blocks fitting_blocks(Tiling tiling, const Head& head, int64_t fast_elements) {
  const bool queries_stay = tiling == Tiling::flash2;
  int64_t longer = std::min(ceil_div(fast_elements, 4 * head.head_dim), head.seqlen);
  for (; longer >= 1; --longer) {
    const int64_t shorter = std::min(longer, head.head_dim);
    const Blocks blocks = queries_stay ? Blocks{longer, shorter} : Blocks{shorter, longer};
    if (footprint(tiling, blocks, head.head_dim) <= fast_elements) return blocks;
  }
  return {};
}

int64_t rows_held(int64_t seqlen, int64_t head_dim, int64_t fast_elements) {
  return std::clamp<int64_t>(fast_elements / head_dim - 1, 1, seqlen);
}

}  // namespace sirdar::ladder
