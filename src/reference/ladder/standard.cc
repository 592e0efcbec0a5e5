// S4: attention as three separate steps, S = scale Q K^T, P = softmax(S), O = P V, with S and P
// whole in slow memory; and the backward pass that keeps P. The baseline of everything above.
//
// The products hold as many rows of their result's operand as fast memory takes and stream the
// other operand past them row by row, the least traffic that a product of this shape can have here.
#include <limits>
#include <utility>

#include "reference/ladder/blocks.h"
#include "reference/ladder/ladder.h"

namespace sirdar::ladder {
namespace {

// c[i, j] = scale * dot(a_i, b_j); a, b [seqlen, head_dim], c [seqlen, seqlen].
void product_of_rows(Machine& machine, const Head& head, float scale, const Slow& a, const Slow& b,
                     Slow& c) {
  const auto [n, d] = std::pair(head.seqlen, head.head_dim);
  const int64_t held = rows_held(n, d, machine.fast_elements());
  Fast a_rows = machine.fast(held * d);
  Fast b_row = machine.fast(d);
  for (int64_t tile = 0; tile < ceil_div(n, held); ++tile) {
    const RowRange rows = rows_of_tile(tile, held, n);
    machine.load(a_rows, a, rows.begin * d, rows.size() * d);
    for (int64_t j = 0; j < n; ++j) {
      machine.load(b_row, b, j * d, d);
      for (int64_t i = rows.begin; i < rows.end; ++i) {
        const float dot = machine.dot(a_rows.row(i - rows.begin, d), b_row.row(0, d), d);
        machine.write(c, i * n + j, machine.mul(scale, dot));
      }
    }
  }
}

enum class Transpose { no, yes };

// c = w b, or w^T b; w [seqlen, seqlen], b, c [seqlen, head_dim].
void product_with_weights(Machine& machine, const Head& head, Transpose transpose, const Slow& w,
                          const Slow& b, Slow& c) {
  const auto [n, d] = std::pair(head.seqlen, head.head_dim);
  const int64_t held = rows_held(n, d, machine.fast_elements());
  Fast c_rows = machine.fast(held * d);
  Fast b_row = machine.fast(d);
  for (int64_t tile = 0; tile < ceil_div(n, held); ++tile) {
    const RowRange rows = rows_of_tile(tile, held, n);
    c_rows.fill(0);
    for (int64_t j = 0; j < n; ++j) {
      machine.load(b_row, b, j * d, d);
      for (int64_t i = rows.begin; i < rows.end; ++i) {
        const float weight = machine.read(w, transpose == Transpose::yes ? j * n + i : i * n + j);
        machine.add_scaled(c_rows.row(i - rows.begin, d), weight, b_row.row(0, d), d);
      }
    }
    machine.store(c, rows.begin * d, c_rows, rows.size() * d);
  }
}

// Safe softmax of a row that fits in fast memory: read once.
void softmax_of_resident_row(Machine& machine, const Slow& scores, Slow& weights, int64_t offset,
                             int64_t size) {
  Fast row = machine.fast(size);
  machine.load(row, scores, offset, size);
  float row_max = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < size; ++j) row_max = machine.max(row_max, row[j]);
  float row_sum = 0;
  for (int64_t j = 0; j < size; ++j) {
    row[j] = machine.exp(machine.sub(row[j], row_max));
    row_sum = machine.add(row_sum, row[j]);
  }
  for (int64_t j = 0; j < size; ++j) row[j] = machine.div(row[j], row_sum);
  machine.store(weights, offset, row, size);
}

// dscores = weights * (dweights - sum over the row of weights * dweights), in dweights' place.
void softmax_backward_of_row(Machine& machine, const Slow& weights, Slow& dweights, int64_t offset,
                             int64_t size) {
  float sum = 0;
  for (int64_t j = 0; j < size; ++j) {
    const float weight = machine.read(weights, offset + j);
    sum = machine.add(sum, machine.mul(weight, machine.read(dweights, offset + j)));
  }
  for (int64_t j = 0; j < size; ++j) {
    const float weight = machine.read(weights, offset + j);
    const float dweight = machine.read(dweights, offset + j);
    machine.write(dweights, offset + j, machine.mul(weight, machine.sub(dweight, sum)));
  }
}

void softmax_backward_of_resident_row(Machine& machine, const Slow& weights, Slow& dweights,
                                      int64_t offset, int64_t size) {
  Fast weight = machine.fast(size);
  Fast dweight = machine.fast(size);
  machine.load(weight, weights, offset, size);
  machine.load(dweight, dweights, offset, size);
  float sum = 0;
  for (int64_t j = 0; j < size; ++j) sum = machine.add(sum, machine.mul(weight[j], dweight[j]));
  for (int64_t j = 0; j < size; ++j) {
    dweight[j] = machine.mul(weight[j], machine.sub(dweight[j], sum));
  }
  machine.store(dweights, offset, dweight, size);
}

}  // namespace

Slow standard_forward(Machine& machine, const Head& head, Tensors& tensors) {
  const int64_t n = head.seqlen;
  Slow scores = machine.scratch(n * n);
  product_of_rows(machine, head, head.scale, tensors.q, tensors.k, scores);
  Slow weights = machine.scratch(n * n);
  const auto softmax = n <= machine.fast_elements() ? softmax_of_resident_row : safe_softmax;
  for (int64_t i = 0; i < n; ++i) softmax(machine, scores, weights, i * n, n);
  product_with_weights(machine, head, Transpose::no, weights, tensors.v, tensors.out);
  return weights;
}

void standard_backward(Machine& machine, const Head& head, const Slow& weights, Tensors& tensors) {
  const int64_t n = head.seqlen;
  product_with_weights(machine, head, Transpose::yes, weights, tensors.dout, tensors.dv);
  Slow dscores = machine.scratch(n * n);
  // The scale of the scores goes in here: dS is linear in dP, and this saves a pass.
  product_of_rows(machine, head, head.scale, tensors.dout, tensors.v, dscores);
  const auto softmax_backward =
      2 * n <= machine.fast_elements() ? softmax_backward_of_resident_row : softmax_backward_of_row;
  for (int64_t i = 0; i < n; ++i) softmax_backward(machine, weights, dscores, i * n, n);
  product_with_weights(machine, head, Transpose::no, dscores, tensors.k, tensors.dq);
  product_with_weights(machine, head, Transpose::yes, dscores, tensors.q, tensors.dk);
}

}  // namespace sirdar::ladder
