// What a problem alone, without its data, tells about the tiles of its score matrix: for one head
// of one sequence of full length.
#pragma once

#include <sirdar/plan.hpp>
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

// What expressions read, as in Args, and the sequence and query head to look at.
struct ExpressionData {
  std::vector<NamedTensor> tensors;
  std::vector<std::pair<std::string, double>> scalars;
  std::optional<int64_t> b, h;
};

// An expression of a problem with all that it reads. The problem must be valid, and data must have
// the dtypes and ranks it declares.
class KnownExpression {
 public:
  // Nothing where the problem has none, or where it is not known: `unknown` then says so in words.
  static std::optional<KnownExpression> of(expression::Kind kind, const Problem& problem,
                                           const ExpressionData& data,
                                           std::vector<std::string>& unknown);

  Cover coverage(Range q, Range k) const;                    // mask_mod
  double value(double score, Position q, Position k) const;  // score_mod

 private:
  explicit KnownExpression(expression::Program program) : program_(std::move(program)) {}
  bool bind(const Problem& problem, const ExpressionData& data);

  expression::Program program_;
  std::vector<TensorView> tensors_;  // by place in the problem; one that is not read is absent
  std::vector<double> scalars_;
  Position b_ = 0, h_ = 0, shift_ = 0;
};

// Structured masks, and a mask_mod that is known.
class KnownMasks {
 public:
  explicit KnownMasks(const Problem& problem, const ExpressionData& data = {});

  // Masks that are not known; they may hide any pair, so no tile is said to be `all` beside them.
  const std::vector<std::string>& unknown() const { return unknown_; }
  bool has_mask_mod() const { return mask_mod_.has_value(); }
  Cover coverage(Range q, Range k) const;

 private:
  StructuredMask structured_;
  std::vector<std::string> unknown_;
  std::optional<KnownExpression> mask_mod_;
};

// Query rows and keys of a tile: block_m and block_n of a printed config, 64 where it has none.
// Rows that several heads have (num_packed_heads) count once.
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
