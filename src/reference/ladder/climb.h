// Runs every rung on one random head, measures its error against float64, and checks what the
// machine counted against the formulas.
#pragma once

#include <sirdar/status.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "reference/ladder/blocks.h"
#include "reference/ladder/machine.h"

namespace sirdar::ladder {

struct Rung {
  std::string system;  // "S5"
  std::string name;    // "flash1 forward"
  Blocks blocks;       // {0, 0} where the rung has no tiles
  Counts counts;
  double seconds = 0;
  double max_error = 0;  // largest absolute difference from float64 over the rung's results
};

enum class Relation : uint8_t { equal, at_most, less, between };

// One comparison of something counted with what was predicted.
struct Check {
  std::string system;
  std::string claim;  // with its formula
  double counted = 0;
  Relation relation = Relation::equal;
  double predicted = 0;
  double upper = 0;  // for between: predicted is the lower end

  bool passes() const;
};

struct Climb {
  std::vector<Rung> rungs;
  std::vector<Check> checks;
};

struct ClimbOptions {
  Head head;
  int64_t fast_memory_bytes = 0;
  uint64_t seed = 1;
  std::function<void(std::string_view rung)> on_rung;  // called before each; may be empty
};

// The longest sequence: the score matrices of the first rungs then take 1.3 GiB.
inline constexpr int64_t kMaxSeqlen = 8192;

// Refuses lengths and dimensions below 1 and a fast memory that holds no tile.
Result<Climb> climb(const ClimbOptions& options);

// The smallest whole x for which the naive softmax of the row {x} is not a number.
int64_t first_overflow(Precision precision);

// Local tiles, the first key tile and every fourth block diagonal: something of each usual pattern.
TilePattern example_pattern(const Head& head, const Blocks& blocks);

}  // namespace sirdar::ladder
