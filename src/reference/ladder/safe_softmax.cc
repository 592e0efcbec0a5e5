// S2: the row's largest score is subtracted first, so that no exponential exceeds 1. The maximum is
// needed before the sum and the sum before the first result: three passes over the row.
#include <limits>

#include "reference/ladder/ladder.h"

namespace sirdar::ladder {

void safe_softmax(Machine& machine, const Slow& scores, Slow& weights, int64_t offset,
                  int64_t size) {
  float row_max = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < size; ++j) {
    row_max = machine.max(row_max, machine.read(scores, offset + j));
  }
  float row_sum = 0;
  for (int64_t j = 0; j < size; ++j) {
    const float shifted = machine.sub(machine.read(scores, offset + j), row_max);
    row_sum = machine.add(row_sum, machine.exp(shifted));
  }
  for (int64_t j = 0; j < size; ++j) {
    const float shifted = machine.sub(machine.read(scores, offset + j), row_max);
    machine.write(weights, offset + j, machine.div(machine.exp(shifted), row_sum));
  }
}

}  // namespace sirdar::ladder
