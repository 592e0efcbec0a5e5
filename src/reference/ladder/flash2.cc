// S8, S9, S11: FlashAttention-2. Query blocks in the outer loop, so each is finished before the
// next begins and nothing but the result is written; the output stays unnormalised until the end,
// when one division and one logsumexp a row close it.
#include <algorithm>
#include <limits>

#include "reference/ladder/ladder.h"

namespace sirdar::ladder {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Forward: a query block, what it has gathered so far, and the K/V tile that passes.
class Flash2 {
 public:
  Flash2(Machine& machine, const Head& head, const Blocks& blocks)
      : machine_(machine),
        head_(head),
        block_n_(blocks.block_n),
        q_(machine.fast(blocks.block_m * head.head_dim)),
        out_(machine.fast(blocks.block_m * head.head_dim)),
        k_(machine.fast(blocks.block_n * head.head_dim)),
        v_(machine.fast(blocks.block_n * head.head_dim)),
        scores_(machine.fast(blocks.block_m * blocks.block_n)),
        row_max_(machine.fast(blocks.block_m)),
        row_sum_(machine.fast(blocks.block_m)) {}

  void begin(const Tensors& tensors, RowRange queries) {
    queries_ = queries;
    machine_.load(q_, tensors.q, queries.begin * head_.head_dim, queries.size() * head_.head_dim);
    out_.fill(0);
    row_max_.fill(kMinusInfinity);
    row_sum_.fill(0);
  }

  void update(const Tensors& tensors, RowRange keys, bool is_masked) {
    const int64_t d = head_.head_dim;
    machine_.load(k_, tensors.k, keys.begin * d, keys.size() * d);
    machine_.load(v_, tensors.v, keys.begin * d, keys.size() * d);
    for (int64_t row = 0; row < queries_.size(); ++row) update_row(row, keys, is_masked);
    machine_.count_tile(is_masked);
  }

  void finish(Tensors& tensors, Slow& lse) {
    const int64_t d = head_.head_dim;
    for (int64_t row = 0; row < queries_.size(); ++row) {
      for (int64_t c = 0; c < d; ++c)
        out_.row(row, d)[c] = machine_.div(out_.row(row, d)[c], row_sum_[row]);
      row_max_[row] = machine_.add(row_max_[row], machine_.log(row_sum_[row]));
    }
    machine_.store(tensors.out, queries_.begin * d, out_, queries_.size() * d);
    machine_.store(lse, queries_.begin, row_max_, queries_.size());
  }

 private:
  void update_row(int64_t row, RowRange keys, bool is_masked) {
    const int64_t d = head_.head_dim, num_keys = keys.size();
    float* scores = scores_.row(row, block_n_);
    float new_max = row_max_[row];
    for (int64_t j = 0; j < num_keys; ++j) {
      scores[j] = machine_.mul(head_.scale, machine_.dot(q_.row(row, d), k_.row(j, d), d));
      if (is_masked && keys.begin + j > queries_.begin + row) scores[j] = kMinusInfinity;
      new_max = machine_.max(new_max, scores[j]);
    }
    // new_max is finite: the first key tile holds key 0, which every row sees.
    const float keep = machine_.exp(machine_.sub(row_max_[row], new_max));
    float tile_sum = 0;
    for (int64_t j = 0; j < num_keys; ++j) {
      scores[j] = machine_.exp(machine_.sub(scores[j], new_max));
      tile_sum = machine_.add(tile_sum, scores[j]);
    }
    row_sum_[row] = machine_.add(machine_.mul(row_sum_[row], keep), tile_sum);
    row_max_[row] = new_max;

    float* out = out_.row(row, d);
    for (int64_t c = 0; c < d; ++c) out[c] = machine_.mul(out[c], keep);
    for (int64_t j = 0; j < num_keys; ++j) machine_.add_scaled(out, scores[j], v_.row(j, d), d);
  }

  Machine& machine_;
  const Head& head_;
  int64_t block_n_;
  RowRange queries_;
  Fast q_, out_, k_, v_, scores_, row_max_, row_sum_;
};

// Backward: a K/V tile with its gradients, and the query block that passes.
class Flash2Backward {
 public:
  Flash2Backward(Machine& machine, const Head& head, const Blocks& blocks, Tensors& tensors)
      : machine_(machine),
        head_(head),
        block_n_(blocks.block_n),
        tensors_(tensors),
        k_(machine.fast(blocks.block_n * head.head_dim)),
        v_(machine.fast(blocks.block_n * head.head_dim)),
        dk_(machine.fast(blocks.block_n * head.head_dim)),
        dv_(machine.fast(blocks.block_n * head.head_dim)),
        q_(machine.fast(blocks.block_m * head.head_dim)),
        dout_(machine.fast(blocks.block_m * head.head_dim)),
        dq_(machine.fast(blocks.block_m * head.head_dim)),
        weights_(machine.fast(blocks.block_m * blocks.block_n)),
        dscores_(machine.fast(blocks.block_m * blocks.block_n)),
        lse_(machine.fast(blocks.block_m)),
        delta_(machine.fast(blocks.block_m)) {}

  void begin(RowRange keys) {
    keys_ = keys;
    const int64_t d = head_.head_dim;
    machine_.load(k_, tensors_.k, keys.begin * d, keys.size() * d);
    machine_.load(v_, tensors_.v, keys.begin * d, keys.size() * d);
    dk_.fill(0);
    dv_.fill(0);
  }

  void update(RowRange queries, const Slow& lse, const Slow& delta) {
    const int64_t d = head_.head_dim, offset = queries.begin * d, count = queries.size() * d;
    machine_.load(q_, tensors_.q, offset, count);
    machine_.load(dout_, tensors_.dout, offset, count);
    machine_.load(dq_, tensors_.dq, offset, count);
    machine_.load(lse_, lse, queries.begin, queries.size());
    machine_.load(delta_, delta, queries.begin, queries.size());
    for (int64_t row = 0; row < queries.size(); ++row) update_row(row);
    machine_.store(tensors_.dq, offset, dq_, count);
    machine_.count_tile(false);
  }

  void finish() {
    const int64_t d = head_.head_dim;
    machine_.store(tensors_.dk, keys_.begin * d, dk_, keys_.size() * d);
    machine_.store(tensors_.dv, keys_.begin * d, dv_, keys_.size() * d);
  }

 private:
  void update_row(int64_t row) {
    const int64_t d = head_.head_dim;
    float* weights = weights_.row(row, block_n_);
    float* dscores = dscores_.row(row, block_n_);
    for (int64_t j = 0; j < keys_.size(); ++j) {
      const float score = machine_.mul(head_.scale, machine_.dot(q_.row(row, d), k_.row(j, d), d));
      weights[j] = machine_.exp(machine_.sub(score, lse_[row]));
      machine_.add_scaled(dv_.row(j, d), weights[j], dout_.row(row, d), d);
      const float dweight = machine_.dot(dout_.row(row, d), v_.row(j, d), d);
      // The scale belongs to dq and dk; put here it is applied once.
      dscores[j] =
          machine_.mul(head_.scale, machine_.mul(weights[j], machine_.sub(dweight, delta_[row])));
      machine_.add_scaled(dq_.row(row, d), dscores[j], k_.row(j, d), d);
      machine_.add_scaled(dk_.row(j, d), dscores[j], q_.row(row, d), d);
    }
  }

  Machine& machine_;
  const Head& head_;
  int64_t block_n_;
  Tensors& tensors_;
  RowRange keys_;
  Fast k_, v_, dk_, dv_, q_, dout_, dq_, weights_, dscores_, lse_, delta_;
};

// delta[i] = dot(dout_i, out_i), which equals the row's sum of weights * dweights; and dq = 0.
void prepare_backward(Machine& machine, const Head& head, Tensors& tensors, Slow& delta) {
  const int64_t d = head.head_dim;
  Fast dout = machine.fast(d);
  Fast out = machine.fast(d);
  Fast zeros = machine.fast(d);
  zeros.fill(0);
  for (int64_t i = 0; i < head.seqlen; ++i) {
    machine.load(dout, tensors.dout, i * d, d);
    machine.load(out, tensors.out, i * d, d);
    float sum = 0;
    for (int64_t c = 0; c < d; ++c) sum = machine.add(sum, machine.mul(dout[c], out[c]));
    machine.write(delta, i, sum);
    machine.store(tensors.dq, i * d, zeros, d);
  }
}

}  // namespace

Slow flash2_forward(Machine& machine, const Head& head, const Blocks& blocks, bool is_causal,
                    Tensors& tensors) {
  Slow lse = machine.scratch(head.seqlen);
  Flash2 pass(machine, head, blocks);
  for (int64_t tile_m = 0; tile_m < ceil_div(head.seqlen, blocks.block_m); ++tile_m) {
    const RowRange queries = rows_of_tile(tile_m, blocks.block_m, head.seqlen);
    pass.begin(tensors, queries);
    for (int64_t tile_n = 0; tile_n < ceil_div(head.seqlen, blocks.block_n); ++tile_n) {
      const RowRange keys = rows_of_tile(tile_n, blocks.block_n, head.seqlen);
      const bool above_diagonal = keys.begin >= queries.end;
      if (is_causal && above_diagonal) break;
      const bool on_diagonal = keys.end - 1 > queries.begin;
      pass.update(tensors, keys, is_causal && on_diagonal);
    }
    pass.finish(tensors, lse);
  }
  return lse;
}

void flash2_backward(Machine& machine, const Head& head, const Blocks& blocks, const Slow& lse,
                     Tensors& tensors) {
  Slow delta = machine.scratch(head.seqlen);
  prepare_backward(machine, head, tensors, delta);
  Flash2Backward pass(machine, head, blocks, tensors);
  for (int64_t tile_n = 0; tile_n < ceil_div(head.seqlen, blocks.block_n); ++tile_n) {
    pass.begin(rows_of_tile(tile_n, blocks.block_n, head.seqlen));
    for (int64_t tile_m = 0; tile_m < ceil_div(head.seqlen, blocks.block_m); ++tile_m) {
      pass.update(rows_of_tile(tile_m, blocks.block_m, head.seqlen), lse, delta);
    }
    pass.finish();
  }
}

}  // namespace sirdar::ladder
