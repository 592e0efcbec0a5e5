// S6: recomputation. Scores are cheaper to compute again than to keep. Forward: a first scan over
// the keys finds each row's maximum and sum, a second one rebuilds the scores and multiplies the
// finished weights with V. Backward: weights are rebuilt from Q, K and the two statistics of each
// row.
#include "reference/ladder/ladder.h"

namespace sirdar::ladder {
namespace {

class TwoScans {
 public:
  TwoScans(Machine& machine, const Head& head, const Blocks& blocks, Tensors& tensors)
      : machine_(machine),
        head_(head),
        blocks_(blocks),
        tensors_(tensors),
        q_(machine.fast(blocks.block_m * head.head_dim)),
        out_(machine.fast(blocks.block_m * head.head_dim)),
        k_(machine.fast(blocks.block_n * head.head_dim)),
        v_(machine.fast(blocks.block_n * head.head_dim)),
        scores_(machine.fast(blocks.block_m * blocks.block_n)),
        row_max_(machine.fast(blocks.block_m)),
        row_sum_(machine.fast(blocks.block_m)) {}

  // First scan of one query block: row_max and row_sum.
  void find_statistics(RowRange queries, RowStatistics& statistics) {
    load_queries(queries);
    for (int64_t row = 0; row < queries.size(); ++row) {
      row_max_[row] = empty_row().row_max;
      row_sum_[row] = empty_row().row_sum;
    }
    for (int64_t tile_n = 0; tile_n < tiles_n(); ++tile_n) {
      load_keys(tile_n);
      for (int64_t row = 0; row < queries.size(); ++row) {
        const RowState state = merge(machine_, {row_max_[row], row_sum_[row]}, tile_state(row));
        row_max_[row] = state.row_max;
        row_sum_[row] = state.row_sum;
      }
      machine_.count_tile(false);
    }
    machine_.store(statistics.row_max, queries.begin, row_max_, queries.size());
    machine_.store(statistics.row_sum, queries.begin, row_sum_, queries.size());
  }

  // Second scan: out += exp(score - row_max) / row_sum * v.
  void accumulate_output(RowRange queries, const RowStatistics& statistics) {
    const int64_t d = head_.head_dim;
    load_queries(queries);
    machine_.load(row_max_, statistics.row_max, queries.begin, queries.size());
    machine_.load(row_sum_, statistics.row_sum, queries.begin, queries.size());
    out_.fill(0);
    for (int64_t tile_n = 0; tile_n < tiles_n(); ++tile_n) {
      load_keys(tile_n);
      machine_.load(v_, tensors_.v, keys_.begin * d, keys_.size() * d);
      for (int64_t row = 0; row < queries.size(); ++row) add_weighted_values(row);
      machine_.count_tile(false);
    }
    machine_.store(tensors_.out, queries.begin * d, out_, queries.size() * d);
  }

 private:
  int64_t tiles_n() const { return ceil_div(head_.seqlen, blocks_.block_n); }

  void load_queries(RowRange queries) {
    const int64_t d = head_.head_dim;
    machine_.load(q_, tensors_.q, queries.begin * d, queries.size() * d);
  }

  void load_keys(int64_t tile_n) {
    const int64_t d = head_.head_dim;
    keys_ = rows_of_tile(tile_n, blocks_.block_n, head_.seqlen);
    machine_.load(k_, tensors_.k, keys_.begin * d, keys_.size() * d);
  }

  float score(int64_t row, int64_t key) {
    const int64_t d = head_.head_dim;
    return machine_.mul(head_.scale, machine_.dot(q_.row(row, d), k_.row(key, d), d));
  }

  RowState tile_state(int64_t row) {
    float* scores = scores_.row(row, blocks_.block_n);
    RowState state = empty_row();
    for (int64_t j = 0; j < keys_.size(); ++j) {
      scores[j] = score(row, j);
      state.row_max = machine_.max(state.row_max, scores[j]);
    }
    for (int64_t j = 0; j < keys_.size(); ++j) {
      const float weight = machine_.exp(machine_.sub(scores[j], state.row_max));
      state.row_sum = machine_.add(state.row_sum, weight);
    }
    return state;
  }

  void add_weighted_values(int64_t row) {
    const int64_t d = head_.head_dim;
    for (int64_t j = 0; j < keys_.size(); ++j) {
      const float exponential = machine_.exp(machine_.sub(score(row, j), row_max_[row]));
      const float weight = machine_.div(exponential, row_sum_[row]);
      machine_.add_scaled(out_.row(row, d), weight, v_.row(j, d), d);
    }
  }

  Machine& machine_;
  const Head& head_;
  const Blocks& blocks_;
  Tensors& tensors_;
  RowRange keys_;
  Fast q_, out_, k_, v_, scores_, row_max_, row_sum_;
};

// A K/V tile with its gradients is held; query blocks pass, and dq is rewritten at every step.
class RecomputeBackward {
 public:
  RecomputeBackward(Machine& machine, const Head& head, const Blocks& blocks, Tensors& tensors)
      : machine_(machine),
        head_(head),
        block_n_(blocks.block_n),
        tensors_(tensors),
        k_(machine.fast(blocks.block_n * head.head_dim)),
        v_(machine.fast(blocks.block_n * head.head_dim)),
        dk_(machine.fast(blocks.block_n * head.head_dim)),
        dv_(machine.fast(blocks.block_n * head.head_dim)),
        q_(machine.fast(blocks.block_m * head.head_dim)),
        out_(machine.fast(blocks.block_m * head.head_dim)),
        dout_(machine.fast(blocks.block_m * head.head_dim)),
        dq_(machine.fast(blocks.block_m * head.head_dim)),
        weights_(machine.fast(blocks.block_m * blocks.block_n)),
        dscores_(machine.fast(blocks.block_m * blocks.block_n)),
        row_max_(machine.fast(blocks.block_m)),
        row_sum_(machine.fast(blocks.block_m)) {}

  void write_zeros(RowRange queries) {
    dq_.fill(0);
    machine_.store(tensors_.dq, queries.begin * head_.head_dim, dq_,
                   queries.size() * head_.head_dim);
  }

  void begin(RowRange keys) {
    keys_ = keys;
    const int64_t d = head_.head_dim;
    machine_.load(k_, tensors_.k, keys.begin * d, keys.size() * d);
    machine_.load(v_, tensors_.v, keys.begin * d, keys.size() * d);
    dk_.fill(0);
    dv_.fill(0);
  }

  void update(RowRange queries, const RowStatistics& saved) {
    const int64_t d = head_.head_dim, offset = queries.begin * d, count = queries.size() * d;
    machine_.load(q_, tensors_.q, offset, count);
    machine_.load(out_, tensors_.out, offset, count);
    machine_.load(dout_, tensors_.dout, offset, count);
    machine_.load(dq_, tensors_.dq, offset, count);
    machine_.load(row_max_, saved.row_max, queries.begin, queries.size());
    machine_.load(row_sum_, saved.row_sum, queries.begin, queries.size());
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
    float *q = q_.row(row, d), *dout = dout_.row(row, d), *out = out_.row(row, d);
    // dot(dout, out) is the row's sum of weights * dweights; found anew for every K/V tile.
    float delta = 0;
    for (int64_t c = 0; c < d; ++c) delta = machine_.add(delta, machine_.mul(dout[c], out[c]));
    float* weights = weights_.row(row, block_n_);
    float* dscores = dscores_.row(row, block_n_);
    for (int64_t j = 0; j < keys_.size(); ++j) {
      const float score = machine_.mul(head_.scale, machine_.dot(q, k_.row(j, d), d));
      weights[j] = machine_.div(machine_.exp(machine_.sub(score, row_max_[row])), row_sum_[row]);
      machine_.add_scaled(dv_.row(j, d), weights[j], dout, d);
      const float dweight = machine_.dot(dout, v_.row(j, d), d);
      // The scale belongs to dq and dk; put here it is applied once.
      dscores[j] =
          machine_.mul(head_.scale, machine_.mul(weights[j], machine_.sub(dweight, delta)));
      machine_.add_scaled(dq_.row(row, d), dscores[j], k_.row(j, d), d);
      machine_.add_scaled(dk_.row(j, d), dscores[j], q, d);
    }
  }

  Machine& machine_;
  const Head& head_;
  int64_t block_n_;
  Tensors& tensors_;
  RowRange keys_;
  Fast k_, v_, dk_, dv_, q_, out_, dout_, dq_, weights_, dscores_, row_max_, row_sum_;
};

}  // namespace

RowStatistics recompute_forward(Machine& machine, const Head& head, const Blocks& blocks,
                                Tensors& tensors) {
  RowStatistics statistics{machine.scratch(head.seqlen), machine.scratch(head.seqlen)};
  TwoScans scans(machine, head, blocks, tensors);
  const int64_t tiles_m = ceil_div(head.seqlen, blocks.block_m);
  for (int64_t tile_m = 0; tile_m < tiles_m; ++tile_m) {
    scans.find_statistics(rows_of_tile(tile_m, blocks.block_m, head.seqlen), statistics);
  }
  for (int64_t tile_m = 0; tile_m < tiles_m; ++tile_m) {
    scans.accumulate_output(rows_of_tile(tile_m, blocks.block_m, head.seqlen), statistics);
  }
  return statistics;
}

void recompute_backward(Machine& machine, const Head& head, const Blocks& blocks,
                        const RowStatistics& saved, Tensors& tensors) {
  RecomputeBackward pass(machine, head, blocks, tensors);
  const int64_t tiles_m = ceil_div(head.seqlen, blocks.block_m);
  for (int64_t tile_m = 0; tile_m < tiles_m; ++tile_m) {
    pass.write_zeros(rows_of_tile(tile_m, blocks.block_m, head.seqlen));
  }
  for (int64_t tile_n = 0; tile_n < ceil_div(head.seqlen, blocks.block_n); ++tile_n) {
    pass.begin(rows_of_tile(tile_n, blocks.block_n, head.seqlen));
    for (int64_t tile_m = 0; tile_m < tiles_m; ++tile_m) {
      pass.update(rows_of_tile(tile_m, blocks.block_m, head.seqlen), saved);
    }
    pass.finish();
  }
}

}  // namespace sirdar::ladder
