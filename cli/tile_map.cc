#include "tile_map.h"

#include "plan/tiles.h"

#include <algorithm>

namespace sirdar::cli {
namespace {

// The tiles of one cell.
Cover together(std::optional<Cover> a, Cover b) { return !a || *a == b ? b : Cover::part; }

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// Whole tiles, as many as needed for at most max_cells cells.
int64_t cell_size(int64_t seqlen, int64_t block, int64_t max_cells) {
  return block * std::max<int64_t>(1, ceil_div(ceil_div(seqlen, block), max_cells));
}

Range part_of(int64_t index, int64_t size, int64_t seqlen) {
  return {index * size, std::min(seqlen, (index + 1) * size)};
}

// An expression is bounded better over small boxes than over large ones.
Cover coverage_by_tiles(const KnownMasks& masks, Range q, Range k, int64_t block_m,
                        int64_t block_n) {
  std::optional<Cover> cover;
  for (Position i = q.begin; i < q.end; i += block_m) {
    for (Position j = k.begin; j < k.end; j += block_n) {
      cover = together(
          cover, masks.coverage({i, min_of(q.end, i + block_m)}, {j, min_of(k.end, j + block_n)}));
      if (*cover == Cover::part) return Cover::part;
    }
  }
  return cover.value_or(Cover::none);
}

void add_scores(TileMap& map, const Problem& problem, const ExpressionData& data) {
  const auto score_mod =
      KnownExpression::of(expression::Kind::score_mod, problem, data, map.unknown);
  if (!score_mod) return;
  for (int64_t row = 0; row < map.num_rows; ++row) {
    for (int64_t column = 0; column < map.num_columns; ++column) {
      const Range q = part_of(row, map.cell_m, map.seqlen_q);
      const Range k = part_of(column, map.cell_n, map.seqlen_k);
      const bool is_empty = map.at(row, column) == Cover::none;
      map.scores.push_back(is_empty ? 0
                                    : score_mod->value(1, q.begin + (q.size() - 1) / 2,
                                                       k.begin + (k.size() - 1) / 2));
    }
  }
}

}  // namespace

TileMap tile_map(const Problem& problem, const TileSize& tile, int64_t max_cells,
                 const ExpressionData& data) {
  const auto [block_m, block_n] = tile;
  TileMap map{problem.seqlen_q, problem.seqlen_k, block_m, block_n};
  map.cell_m = cell_size(map.seqlen_q, block_m, max_cells);
  map.cell_n = cell_size(map.seqlen_k, block_n, max_cells);
  map.num_rows = ceil_div(map.seqlen_q, map.cell_m);
  map.num_columns = ceil_div(map.seqlen_k, map.cell_n);
  const KnownMasks masks(problem, data);
  map.unknown = masks.unknown();
  // Structured masks are exact over boxes of any size, so tiles need a look only for an expression,
  // and only while there are not too many of them.
  constexpr int64_t kMaxTilesOfCell = 64;
  const bool by_tiles =
      masks.has_mask_mod() && map.cell_m / block_m * (map.cell_n / block_n) <= kMaxTilesOfCell;
  for (int64_t row = 0; row < map.num_rows; ++row) {
    for (int64_t column = 0; column < map.num_columns; ++column) {
      const Range q = part_of(row, map.cell_m, map.seqlen_q);
      const Range k = part_of(column, map.cell_n, map.seqlen_k);
      map.cells.push_back(by_tiles ? coverage_by_tiles(masks, q, k, block_m, block_n)
                                   : masks.coverage(q, k));
    }
  }
  add_scores(map, problem, data);
  return map;
}

}  // namespace sirdar::cli
