// S7: FlashAttention-1 in which a tile outside the pattern costs nothing: it is neither loaded nor
// computed. A row that sees no tile keeps its initial out = 0.
#include "reference/ladder/flash1.h"

namespace sirdar::ladder {

RowStatistics block_sparse_forward(Machine& machine, const Head& head, const Blocks& blocks,
                                   const TilePattern& pattern, Tensors& tensors) {
  Flash1 pass(machine, head, blocks, tensors);
  for (int64_t tile_n = 0; tile_n < pattern.tiles_n; ++tile_n) {
    bool keys_are_held = false;
    for (int64_t tile_m = 0; tile_m < pattern.tiles_m; ++tile_m) {
      if (!pattern.at(tile_m, tile_n)) continue;
      if (!keys_are_held) pass.load_keys(tile_n);
      keys_are_held = true;
      pass.update(tile_m);
    }
  }
  return pass.take_statistics();
}

}  // namespace sirdar::ladder
