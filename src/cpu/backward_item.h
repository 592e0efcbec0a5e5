// One item of the backward pass: a range of keys of one K/V head against a range of its queries.
// Adds to dk and dv of these keys and to dq of these queries.
//
// The sums of dk and dv run over query tiles in ascending order, within a tile over the query heads
// of the group; those of dq over key blocks in descending order. As long as items run in an order
// that respects both, the bits do not depend on how the ranges are cut.
#pragma once

#include "cpu/backward_tile.h"

namespace sirdar::cpu {

class BackwardItem {
 public:
  BackwardItem(const BackwardCall& call, BackwardScratch& scratch, int64_t b, int64_t head_kv);

  // What of a sum is still to come, or done: who is first starts it from 0, who is last rounds it.
  struct Part {
    Range queries, keys;
    bool is_first_of_dq, is_last_of_dq, is_first_of_dkv, is_last_of_dkv;
  };
  void run(const Part& part);

 private:
  struct Block {
    Range keys;
    int64_t row = 0;        // of its first key in the panels of the key range
    bool is_finite = true;  // K
  };

  // Rows of a gradient and the panels that they are added up in.
  struct Rows {
    const GradientSum& sum;
    const Sequence& sequence;
    int64_t head, first;
    int num_rows, columns;
    float* panels;
    int64_t panel_stride;
  };
  void load_sum(const Rows& rows, bool is_first) const;
  void store_sum(const Rows& rows, bool is_last) const;
  Rows dq_rows(int64_t h, int64_t first, int64_t num_rows) const;
  Rows dk_rows() const;
  Rows dv_rows() const;

  void load_keys();
  void store_keys();
  void run_tile(int64_t h, int64_t first);
  void load_tile();
  void run_block(const Block& block);
  // Weights, dS and dq of one panel.
  void run_panel(const BackwardTile::Panel& panel, const BackwardTile::Part& part,
                 const Block& block);
  void make_weights(const BackwardTile::Panel& panel, const BackwardTile::Part& part,
                    const Block& block);
  void add_dbias(const BackwardTile::Panel& panel, const BackwardTile::Part& part) const;
  void add_dq(const BackwardTile::Panel& panel, const BackwardTile::Part& part, const Block& block);
  // dk and dv of the keys of a block.
  void add_dkv(const Block& block);
  void add_dkv(int64_t row, int num_keys, int first_panel, int end_panel);
  void add_stripe(const Block& block, Range keys);

  // A weight of 0 times a NaN or infinity would be a NaN: where pairs are masked, such rows of an
  // operand are made zeros and then added pair by pair.
  void clear_rows_of_tile(bool clear);
  void clear_keys(const Block& block, bool clear);
  void add_visible_rows(const Block& block);
  void add_visible_keys(const BackwardTile::Panel& panel, const BackwardTile::Part& part,
                        const Block& block);
  const float* q_row(int lane) const;
  const float* dout_row(int lane) const;
  const float* k_row(int64_t key) const;
  float* weights(int panel, int64_t key) const {
    return scratch_.weights + panel * call_.shape.score_stride() + key * call_.shape.width;
  }
  float* gradients(int panel, int64_t key) const {
    return scratch_.gradients + panel * call_.shape.score_stride() + key * call_.shape.width;
  }

  const BackwardCall& call_;
  BackwardScratch& scratch_;
  BackwardTile tile_;
  int64_t b_, head_kv_;
  Part part_{};
  Range keys_;                  // of the range, those that any of its queries may see, or all
  bool tile_is_finite_ = true;  // Q and dO
};

}  // namespace sirdar::cpu
