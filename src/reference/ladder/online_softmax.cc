// S3: maximum and sum in one pass [Milakov18 alg. 3]. When a larger score arrives, the sum so far
// is brought to the new maximum by one factor, exp(old maximum - new maximum). Two passes over the
// row.
#include <limits>

#include "reference/ladder/ladder.h"

namespace sirdar::ladder {

RowState empty_row() { return {-std::numeric_limits<float>::infinity(), 0}; }

// Associative, with empty_row() as identity: a row may be cut anywhere and its parts merged in any
// grouping. Everything above this rung rests on it.
RowState merge(Machine& machine, RowState a, RowState b) {
  // Two empty parts: the differences below would be -inf - -inf.
  if (a.row_sum == 0) return b;
  if (b.row_sum == 0) return a;
  const float row_max = machine.max(a.row_max, b.row_max);
  const float a_scale = machine.exp(machine.sub(a.row_max, row_max));
  const float b_scale = machine.exp(machine.sub(b.row_max, row_max));
  return {row_max, machine.add(machine.mul(a.row_sum, a_scale), machine.mul(b.row_sum, b_scale))};
}

void online_softmax(Machine& machine, const Slow& scores, Slow& weights, int64_t offset,
                    int64_t size) {
  RowState state = empty_row();
  for (int64_t j = 0; j < size; ++j) {
    const float score = machine.read(scores, offset + j);
    const float row_max = machine.max(state.row_max, score);
    const float keep = machine.exp(machine.sub(state.row_max, row_max));
    const float weight = machine.exp(machine.sub(score, row_max));
    state = {row_max, machine.add(machine.mul(state.row_sum, keep), weight)};
  }
  for (int64_t j = 0; j < size; ++j) {
    const float shifted = machine.sub(machine.read(scores, offset + j), state.row_max);
    machine.write(weights, offset + j, machine.div(machine.exp(shifted), state.row_sum));
  }
}

}  // namespace sirdar::ladder
