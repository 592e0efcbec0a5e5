#include "reference/ladder/published.h"

#include "reference/ladder/blocks.h"
#include "reference/ladder/formulas.h"

namespace sirdar::ladder {
namespace {

PassCost cost_of(const Prediction& forward, const Prediction& backward) {
  PassCost cost;
  for (const Prediction* p : {&forward, &backward}) {
    const int64_t flops = p->matmul_flops.value + p->other_flops.value + p->exps.value;
    const int64_t elements = p->read.value + p->written.value;
    cost.gflop += 1e-9 * static_cast<double>(flops * PublishedTable::kPairs);
    cost.gigabytes += 1e-9 * static_cast<double>(elements * PublishedTable::kPairs *
                                                 PublishedTable::kElementBytes);
  }
  return cost;
}

}  // namespace

PublishedTable evaluate_published_table() {
  using Table = PublishedTable;
  const Head head{Table::kSeqlen, Table::kHeadDim, 0.125F};
  const int64_t m = Table::kFastMemoryBytes / Table::kElementBytes;
  const Blocks forward = fitting_blocks(Tiling::flash1, head, m);
  const Blocks backward = fitting_blocks(Tiling::recompute_backward, head, m);
  PublishedTable table;
  table.standard = cost_of(predict_standard_forward(head, m), predict_standard_backward(head, m));
  table.flash = cost_of(predict_flash1(head, forward), predict_recompute_backward(head, backward));
  return table;
}

}  // namespace sirdar::ladder
