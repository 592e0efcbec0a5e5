// What a problem alone, without its data, tells about the tiles of its score matrix: for one head
// of one sequence of full length.
#pragma once

#include <sirdar/problem.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expression/expression.h"
#include "shared/mask.h"

namespace sirdar {

// Masks that only the data tell, in words: "document ids".
std::vector<std::string> masks_of_data(const Problem& problem);

// Structured masks, and a mask_mod that reads nothing but positions. The problem must be valid.
class KnownMasks {
 public:
  explicit KnownMasks(const Problem& problem);

  // Masks that are not known; they may hide any pair, so no tile is said to be `all` beside them.
  const std::vector<std::string>& unknown() const { return unknown_; }
  bool has_mask_mod() const { return mask_mod_.has_value(); }
  Cover coverage(Range q, Range k) const;

 private:
  StructuredMask structured_;
  Position shift_;
  std::optional<expression::Program> mask_mod_;
  std::vector<std::string> unknown_;
};

// Query rows and keys of a tile: block_m and block_n of a printed config, 64 where it has none.
struct TileSize {
  int64_t block_m = 64, block_n = 64;
};
TileSize tile_size(std::string_view config);

struct TileCounts {
  int64_t none = 0, part = 0, all = 0;
  std::vector<std::string> unknown;  // as in KnownMasks: tiles counted as part may be empty or full
};
// Nothing when there are more tiles than are worth walking.
std::optional<TileCounts> count_tiles(const Problem& problem, int64_t block_m, int64_t block_n);

}  // namespace sirdar
