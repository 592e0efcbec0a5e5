#include "tile_map.h"

#include "core/geometry.h"
#include "expression/expression.h"

#include <algorithm>

namespace sirdar::cli {
namespace {

// Both masks must allow a pair.
Cover both(Cover a, Cover b) {
  if (a == Cover::none || b == Cover::none) return Cover::none;
  return a == Cover::all && b == Cover::all ? Cover::all : Cover::part;
}

// The tiles of one cell.
Cover together(std::optional<Cover> a, Cover b) { return !a || *a == b ? b : Cover::part; }

class Masks {
 public:
  explicit Masks(const Problem& problem)
      : structured_(structured_mask(problem.mask, problem.seqlen_q, problem.seqlen_k)),
        shift_(problem.seqlen_k - problem.seqlen_q) {
    if (problem.has_document) unknown_.emplace_back("document ids");
    if (problem.has_mask_tensor) unknown_.emplace_back("the mask tensor");
    if (problem.mask_mod.empty()) return;
    // Whatever a mask_mod reads has values only when it runs.
    const auto program =
        expression::Program::parse(expression::Kind::mask_mod, problem.mask_mod, {}, {});
    if (program.ok()) {
      mask_mod_ = program.value();
    } else {
      unknown_.emplace_back("the mask_mod, which reads tensors or scalars");
    }
  }

  const std::vector<std::string>& unknown() const { return unknown_; }
  bool has_mask_mod() const { return mask_mod_.has_value(); }

  Cover coverage(Range q, Range k) const {
    const Cover structured = sirdar::coverage(structured_, q, k);
    if (structured == Cover::none || !mask_mod_) return structured;
    return both(structured, mask_mod_->coverage({}, {.q = q, .k = k, .shift = shift_}));
  }

 private:
  StructuredMask structured_;
  int64_t shift_;
  std::optional<expression::Program> mask_mod_;
  std::vector<std::string> unknown_;
};

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// Whole tiles, as many as needed for at most max_cells cells.
int64_t cell_size(int64_t seqlen, int64_t block, int64_t max_cells) {
  return block * std::max<int64_t>(1, ceil_div(ceil_div(seqlen, block), max_cells));
}

Range part_of(int64_t index, int64_t size, int64_t seqlen) {
  return {index * size, std::min(seqlen, (index + 1) * size)};
}

// An expression is bounded better over small boxes than over large ones.
Cover coverage_by_tiles(const Masks& masks, Range q, Range k, int64_t block_m, int64_t block_n) {
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

}  // namespace

TileMap tile_map(const Problem& problem, int64_t block_m, int64_t block_n, int64_t max_cells) {
  TileMap map{problem.seqlen_q, problem.seqlen_k, block_m, block_n};
  map.cell_m = cell_size(map.seqlen_q, block_m, max_cells);
  map.cell_n = cell_size(map.seqlen_k, block_n, max_cells);
  map.num_rows = ceil_div(map.seqlen_q, map.cell_m);
  map.num_columns = ceil_div(map.seqlen_k, map.cell_n);
  const Masks masks(problem);
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
  return map;
}

}  // namespace sirdar::cli
