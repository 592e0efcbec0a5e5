// One item of the backward pass: a range of keys of one K/V head against all of its queries. Makes
// dk and dv of these keys and adds to dq.
//
// The sums of dk and dv run over query tiles in descending order, within a tile over the query
// heads of the group; those of dq over key blocks in ascending order, within runs of
// keys_per_sum() keys, and then over these runs. As long as each tile adds up the runs in that
// order, the bits do not depend on how the keys are cut.
#pragma once

#include "cpu/backward_tile.h"

namespace sirdar::cpu {

class BackwardItem {
 public:
  BackwardItem(const BackwardCall& call, BackwardScratch& scratch, int64_t b, int64_t head_kv);

  // turns[head][tile] of the sequence: 1 + the last range of keys that is in its dq; null where
  // there is one range alone.
  void start(Range keys, int32_t* turns);
  void run_tile(int64_t tile);  // all query heads of the group
  void finish();

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
  // Of the ranges that see a tile: who is first starts dq from 0, who is last rounds it.
  struct Place {
    bool takes_part, is_first, is_last;
  };
  Place place_of(Range rows) const;
  void wait_for_turn(int64_t h, int64_t tile) const;
  void end_turn(int64_t h, int64_t tile) const;

  void clear_sum(const Rows& rows) const;
  void add_terms(const Rows& rows, const float* terms) const;
  void load_sum(const Rows& rows) const;
  void store_sum(const Rows& rows, bool is_last) const;
  Rows dq_rows(int64_t h, int64_t first, int64_t num_rows) const;
  Rows dk_rows() const;
  Rows dv_rows() const;

  void load_keys(Range seen);
  void run_tile(int64_t h, int64_t tile, Range rows, const Place& place);
  void run_blocks(Range seen, const Rows& dq, bool is_first);
  void load_tile();
  void find_dout_rows();
  void run_block(const Block& block);
  // Weights, dS and dq of one panel.
  void run_panel(const BackwardTile::Panel& panel, const PanelPart& part, const Block& block);
  void make_weights(const BackwardTile::Panel& panel, const PanelPart& part, const Block& block);
  void make_cut_weights(const BackwardTile::Panel& panel, const PanelPart& part,
                        const WeightArgs& whole);
  void add_dbias(const BackwardTile::Panel& panel, const PanelPart& part) const;
  void add_dq(const BackwardTile::Panel& panel, const PanelPart& part, const Block& block);
  // dk and dv of the keys of a block.
  void add_dkv(const Block& block);
  void add_dkv(int64_t row, int num_keys, int first_panel, int end_panel);
  void add_stripe(const Block& block, Range keys);

  // A weight of 0 times a NaN or infinity would be a NaN: where pairs are masked, such rows of an
  // operand are made zeros and then added pair by pair.
  void clear_rows_of_tile(bool clear);
  void clear_keys(const Block& block, bool clear);
  void add_visible_rows(const Block& block);
  void add_visible_keys(const BackwardTile::Panel& panel, const PanelPart& part,
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
  Range keys_;
  int64_t range_ = 0;  // its place among the ranges of the sequence
  int32_t* turns_ = nullptr;
  float* dq_ = nullptr;    // where the block at work adds its terms of dq
  int64_t num_terms_ = 0;  // sums that wait to be added, in scratch
};

}  // namespace sirdar::cpu
