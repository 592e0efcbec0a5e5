// Which tiles of the score matrix a problem's masks empty, cut or leave whole, as far as the
// problem says: one head of one sequence of full length.
#pragma once

#include <sirdar/problem.hpp>

#include <optional>
#include <string>
#include <vector>

#include "plan/tiles.h"
#include "shared/mask.h"

namespace sirdar::cli {

struct TileMap {
  int64_t seqlen_q = 0, seqlen_k = 0;
  int64_t block_m = 0, block_n = 0;  // query rows and keys of a tile
  int64_t cell_m = 0, cell_n = 0;    // of a cell: whole tiles
  int64_t num_rows = 0, num_columns = 0;
  std::vector<Cover> cells;  // [num_rows, num_columns]
  // What a score_mod makes of a score of 1 in the middle of each cell that is not empty (there 0);
  // none where there is no score_mod or the data tell.
  std::vector<double> scores;
  // What only the data decide. Beside such masks no cell is full, and cells that are drawn as part
  // may be empty.
  std::vector<std::string> unknown;

  Cover at(int64_t row, int64_t column) const {
    return cells[static_cast<size_t>(row * num_columns + column)];
  }
};

// At most max_cells cells along an axis; a cell of several tiles is empty or full if all of them
// are. The problem must be valid.
TileMap tile_map(const Problem& problem, const TileSize& tile, int64_t max_cells,
                 const ExpressionData& data);

// Stand-alone SVG with a legend and labelled axes.
std::string tile_map_svg(const TileMap& map, const std::string& problem);

}  // namespace sirdar::cli
