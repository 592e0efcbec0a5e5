// S5: FlashAttention-1. K/V tiles in the outer loop, query blocks in the inner one; the output is
// kept normalised, so every step divides it anew.
#include "reference/ladder/flash1.h"

#include <limits>

namespace sirdar::ladder {

Flash1::Flash1(Machine& machine, const Head& head, const Blocks& blocks, Tensors& tensors)
    : machine_(machine),
      head_(head),
      blocks_(blocks),
      tensors_(tensors),
      statistics_{machine.scratch(head.seqlen), machine.scratch(head.seqlen)},
      q_(machine.fast(blocks.block_m * head.head_dim)),
      out_(machine.fast(blocks.block_m * head.head_dim)),
      k_(machine.fast(blocks.block_n * head.head_dim)),
      v_(machine.fast(blocks.block_n * head.head_dim)),
      scores_(machine.fast(blocks.block_m * blocks.block_n)),
      row_max_(machine.fast(blocks.block_m)),
      row_sum_(machine.fast(blocks.block_m)),
      weighted_values_(machine.fast(head.head_dim)) {
  initialise_slow_memory();
}

// out = 0, row_max = -inf, row_sum = 0, written through fast memory like everything else.
void Flash1::initialise_slow_memory() {
  out_.fill(0);
  row_max_.fill(-std::numeric_limits<float>::infinity());
  row_sum_.fill(0);
  for (int64_t tile = 0; tile < ceil_div(head_.seqlen, blocks_.block_m); ++tile) {
    const RowRange rows = rows_of_tile(tile, blocks_.block_m, head_.seqlen);
    machine_.store(tensors_.out, rows.begin * head_.head_dim, out_, rows.size() * head_.head_dim);
    machine_.store(statistics_.row_max, rows.begin, row_max_, rows.size());
    machine_.store(statistics_.row_sum, rows.begin, row_sum_, rows.size());
  }
}

void Flash1::load_keys(int64_t tile_n) {
  keys_ = rows_of_tile(tile_n, blocks_.block_n, head_.seqlen);
  const int64_t d = head_.head_dim;
  machine_.load(k_, tensors_.k, keys_.begin * d, keys_.size() * d);
  machine_.load(v_, tensors_.v, keys_.begin * d, keys_.size() * d);
}

void Flash1::update(int64_t tile_m) {
  const RowRange rows = rows_of_tile(tile_m, blocks_.block_m, head_.seqlen);
  const int64_t d = head_.head_dim;
  machine_.load(q_, tensors_.q, rows.begin * d, rows.size() * d);
  machine_.load(out_, tensors_.out, rows.begin * d, rows.size() * d);
  machine_.load(row_max_, statistics_.row_max, rows.begin, rows.size());
  machine_.load(row_sum_, statistics_.row_sum, rows.begin, rows.size());
  for (int64_t row = 0; row < rows.size(); ++row) update_row(row);
  machine_.store(tensors_.out, rows.begin * d, out_, rows.size() * d);
  machine_.store(statistics_.row_max, rows.begin, row_max_, rows.size());
  machine_.store(statistics_.row_sum, rows.begin, row_sum_, rows.size());
  machine_.count_tile(false);
}

void Flash1::update_row(int64_t row) {
  const int64_t d = head_.head_dim, num_keys = keys_.size();
  float* scores = scores_.row(row, blocks_.block_n);
  float tile_max = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < num_keys; ++j) {
    scores[j] = machine_.mul(head_.scale, machine_.dot(q_.row(row, d), k_.row(j, d), d));
    tile_max = machine_.max(tile_max, scores[j]);
  }
  float tile_sum = 0;
  for (int64_t j = 0; j < num_keys; ++j) {
    scores[j] = machine_.exp(machine_.sub(scores[j], tile_max));
    tile_sum = machine_.add(tile_sum, scores[j]);
  }
  const float new_max = machine_.max(row_max_[row], tile_max);
  const float old_scale =
      machine_.mul(row_sum_[row], machine_.exp(machine_.sub(row_max_[row], new_max)));
  const float tile_scale = machine_.exp(machine_.sub(tile_max, new_max));
  const float new_sum = machine_.add(old_scale, machine_.mul(tile_scale, tile_sum));

  weighted_values_.fill(0);
  for (int64_t j = 0; j < num_keys; ++j) {
    machine_.add_scaled(weighted_values_.row(0, d), scores[j], v_.row(j, d), d);
  }
  float* out = out_.row(row, d);
  for (int64_t c = 0; c < d; ++c) {
    const float old_part = machine_.mul(old_scale, out[c]);
    const float tile_part = machine_.mul(tile_scale, weighted_values_[c]);
    out[c] = machine_.div(machine_.add(old_part, tile_part), new_sum);
  }
  row_max_[row] = new_max;
  row_sum_[row] = new_sum;
}

RowStatistics flash1_forward(Machine& machine, const Head& head, const Blocks& blocks,
                             Tensors& tensors) {
  Flash1 pass(machine, head, blocks, tensors);
  for (int64_t tile_n = 0; tile_n < ceil_div(head.seqlen, blocks.block_n); ++tile_n) {
    pass.load_keys(tile_n);
    for (int64_t tile_m = 0; tile_m < ceil_div(head.seqlen, blocks.block_m); ++tile_m) {
      pass.update(tile_m);
    }
  }
  return pass.take_statistics();
}

}  // namespace sirdar::ladder
