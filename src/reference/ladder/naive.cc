// S1: softmax as it is written on paper. exp overflows at x >= 12 in fp16 and x >= 89 in fp32, and
// infinity over infinity is not a number.
#include "reference/ladder/ladder.h"

namespace sirdar::ladder {

void naive_softmax(Machine& machine, const Slow& scores, Slow& weights, int64_t offset,
                   int64_t size) {
  float sum = 0;
  for (int64_t j = 0; j < size; ++j) {
    sum = machine.add(sum, machine.exp(machine.read(scores, offset + j)));
  }
  for (int64_t j = 0; j < size; ++j) {
    const float numerator = machine.exp(machine.read(scores, offset + j));
    machine.write(weights, offset + j, machine.div(numerator, sum));
  }
}

}  // namespace sirdar::ladder
