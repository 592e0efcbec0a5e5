// The table that [Dao22 fig. 2] prints for GPT-2 medium, evaluated by the closed forms.
#pragma once

#include <cstdint>

namespace sirdar::ladder {

// Forward and backward together, over all heads of the batch.
struct PassCost {
  double gflop = 0;      // matrix products and everything else
  double gigabytes = 0;  // slow memory, both ways
};

struct PublishedTable {
  static constexpr int64_t kPairs = 64 * 16;  // batch x heads
  static constexpr int64_t kSeqlen = 1024, kHeadDim = 64, kElementBytes = 2;
  static constexpr int64_t kFastMemoryBytes = 192 * 1024;              // one A100 multiprocessor
  static constexpr PassCost kStandard{66.6, 40.3}, kFlash{75.2, 4.4};  // as printed

  PassCost standard, flash;  // by our formulas: S4; S5 with S6's backward
};

PublishedTable evaluate_published_table();

}  // namespace sirdar::ladder
